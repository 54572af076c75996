"""What a process and its children take, as Linux tells it."""

import os
import time
from pathlib import Path

PROC = Path("/proc")


def tree(pid: int) -> list[int]:
    """The process and all that descend from it. Those that end meanwhile may be missing."""
    parents = {int(entry.name): _parent(entry) for entry in PROC.iterdir() if entry.name.isdigit()}
    found = [pid]
    for each in found:  # grows on the way
        found += [child for child, parent in parents.items() if parent == each]
    return found


def resident_bytes(pid: int) -> int:
    """Resident memory of its tree, in bytes; what processes share counts for each of them."""
    page = os.sysconf("SC_PAGE_SIZE")
    return sum(int(words[1]) * page for each in tree(pid) if (words := _read(PROC / f"{each}/statm").split()))


def cpu_seconds(pid: int) -> float:
    """CPU time that its tree has taken, in seconds, to the nanosecond."""
    return sum(map(_cpu_seconds, tree(pid)))


def _cpu_seconds(pid: int) -> float:
    clock = (~pid << 3) | 2  # as clock_getcpuclockid(3) makes it: all threads of the process
    try:
        return time.clock_gettime(clock)
    except OSError:
        return 0.0  # it has ended


def _parent(entry: Path) -> int:
    """The parent's id; -1 when the process has ended. The name before it may hold anything."""
    fields = _read(entry / "stat").rpartition(")")[2].split()
    return int(fields[1]) if fields else -1


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""
