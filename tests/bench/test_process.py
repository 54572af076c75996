"""What /proc tells of a process that has a child."""

import subprocess
import sys

from actorllm.bench.process import cpu_seconds, resident_bytes, tree

CHILD = "import time; sum(range(10**6)); print(time.process_time(), flush=True); input()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"
NOBODY = 2**22 + 1
"""Above the largest process id that Linux gives."""


def test_a_tree_is_measured_with_its_children() -> None:
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        of_child = float(process.stdout.readline())
        parent, child = tree(process.pid)
        assert parent == process.pid
        assert tree(child) == [child]
        assert cpu_seconds(process.pid) >= cpu_seconds(child) >= of_child
        assert resident_bytes(process.pid) > resident_bytes(child) > 1 << 20
        process.communicate("\n")


def test_a_process_that_has_ended_takes_nothing() -> None:
    assert (tree(NOBODY), resident_bytes(NOBODY), cpu_seconds(NOBODY)) == ([NOBODY], 0, 0.0)
