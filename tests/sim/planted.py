"""Bugs to plant: a method of the production code with a piece of its text replaced, for one test."""

import inspect
import textwrap
from dataclasses import dataclass
from typing import Any

import pytest

from actorllm.actors.worker import Device
from actorllm.cores.batch import Batch
from actorllm.cores.blocks import Blocks
from actorllm.cores.detokenizer import Detokenizer
from actorllm.cores.executor import Executor
from actorllm.cores.frontend import Frontend
from actorllm.cores.kvpool import KVPool
from actorllm.cores.plan import Said
from actorllm.cores.renderer import Renderer
from actorllm.cores.requests import Request, WaitingQueue
from actorllm.cores.scheduler import Scheduler
from actorllm.cores.table import Table
from actorllm.cores.text import StopMatcher
from actorllm.cores.timeouts import Timeouts


@dataclass(frozen=True)
class Bug:
    """In a method each key of `changes` becomes its value; `family` is the scenarios that show it.

    `caught_by` is a part of what the simulator then says, where only one of its checks would do.
    """

    name: str
    family: str
    cls: type[Any]
    method: str
    changes: dict[str, str]
    caught_by: str = ""

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put it in. Raises AssertionError when the text that is to be replaced is no longer there."""
        method = inspect.getattr_static(self.cls, self.method)
        function: Any = method.fget if isinstance(method, property) else method
        source = textwrap.dedent(inspect.getsource(function))
        for right, wrong in self.changes.items():
            assert right in source, f"{self.name}: the code has changed; plant it anew"
            source = source.replace(right, wrong)
        names: dict[str, Any] = {}
        exec(compile(source, "<planted>", "exec"), inspect.unwrap(function).__globals__, names)
        monkeypatch.setattr(self.cls, self.method, names[self.method])


POOL = (
    Bug(
        "a held block is handed out",
        "calm",
        Blocks,
        "_allocate_one",
        {"self._empty.pop()": "self._references.index(1) if 1 in self._references else self._empty.pop()"},
    ),
    Bug(
        "a block is published before it is computed",
        "calm",
        KVPool,
        "_confirm",
        {"num_computed // self._block_size": "len(table.tokens) // self._block_size"},
    ),
    Bug(
        "the whole prompt is a hit",
        "calm",
        KVPool,
        "_admit",
        {"(want.debt - 1) // self._block_size": "want.debt // self._block_size"},
    ),
    Bug(
        "a shared block is written",
        "calm",
        KVPool,
        "_admit",
        {
            "(want.debt - 1) // self._block_size": "want.debt // self._block_size",
            "len(hits) * self._block_size": "min(len(hits) * self._block_size, want.debt - 1)",
        },
        caught_by="which others hold too",
    ),
    Bug(
        "a block's hash forgets what came before",
        "calm",
        KVPool,
        "_extend_hashes",
        {"hashlib.blake2b(parent": 'hashlib.blake2b(b""'},
    ),
    Bug(
        "an evicted block can still be found",
        "tight",
        Blocks,
        "_allocate_one",
        {"del self._index[content]": "pass"},
    ),
    Bug("blocks are freed twice", "tight", KVPool, "_give_up", {"table.blocks = []": "pass"}),
    Bug("blocks are freed never", "calm", KVPool, "_give_up", {"self._blocks.free(table.blocks)": "pass"}),
    Bug(
        "a shared block counts as one's own",
        "calm",
        Blocks,
        "share",
        {"self._references[block] += 1": "self._references[block] = 1"},
    ),
    Bug(
        "the pool keeps the blocks of an ended epoch",
        "faulty",
        KVPool,
        "feed",
        {"self._blocks.clear()": "pass"},
    ),
)

SCHEDULER = (
    Bug(
        "a preempted request keeps what it has computed",
        "tight",
        Request,
        "restart",
        {"self.num_computed = self.num_scheduled = 0": "self.num_scheduled = self.num_computed"},
    ),
    Bug(
        "the late token of a preempted request is lost",
        "tight",
        Scheduler,
        "_step_is_done",
        {"Status.ENDED:": "Status.ENDED or row.life != request.life:"},
    ),
    Bug(
        "a Reserved of an ended epoch is heard",
        "faulty",
        Scheduler,
        "_reserved",
        {"message.epoch == self._epoch": "True"},
    ),
    Bug(
        "a StepDone of an ended epoch is heard",
        "faulty",
        Scheduler,
        "feed",
        {"message.epoch == self._epoch": "True"},
    ),
    Bug(
        "an Abort is not heard",
        "impatient",
        Table,
        "feed",
        {'self._finish(self.requests[request], "abort")': "pass"},
        caught_by="after its Abort",
    ),
    Bug(
        "an Abort ends what has ended",
        "impatient",
        Table,
        "feed",
        {
            "if request in self.requests:\n": "if request not in self.requests:\n"
            "                self.said.endings.append(Ending(request, 'abort'))\n"
            "            else:\n",
        },
    ),
    Bug("a timeout is not heard", "impatient", Table, "tick", {'self._finish(late, "timeout")': "pass"}),
    Bug(
        "a deadline is ignored",
        "impatient",
        Scheduler,
        "deadline",
        {"self._table.timeouts.next": "float('inf')"},
        caught_by="nobody wakes for it",
    ),
    Bug(
        "a timeout comes too early",
        "impatient",
        Timeouts,
        "add",
        {"now + seconds": "now + seconds / 2"},
        caught_by="has timed out",
    ),
    Bug(
        "a request with a token still has to speak",
        "impatient",
        Timeouts,
        "next",
        {"_is_met(": "self._heap[0][3].status.name == 'ENDED' and _is_met("},
    ),
    Bug(
        "everyone in a step that raised fails",
        "faulty",
        Scheduler,
        "_step_has_failed",
        {"len(present) == 1": "present", "present[0], ": "present.pop(), "},
        caught_by="failed by a step",
    ),
    Bug(
        "who was sent back is released once more",
        "faulty",
        Said,
        "_release",
        {"request.num_told = 0": "pass"},
    ),
    Bug(
        "others run beside a suspect",
        "faulty",
        Table,
        "clear_the_stage",
        {"self.send_back(request)": "break"},
        caught_by="a suspect's alone",
    ),
    Bug(
        "the pool is not told again after a failure",
        "faulty",
        Table,
        "restart_all",
        {"request.num_told = 0": "0"},
    ),
    Bug(
        "a request is never taken from the queue",
        "calm",
        WaitingQueue,
        "_take_of",
        {"if request.ready:": "if request.ready and request.arrival != 11:"},
        caught_by="never ended",
    ),
    Bug(
        "a placeholder goes beyond max_tokens",
        "calm",
        Request,
        "debt",
        {">= self.max_tokens": "> self.max_tokens"},
    ),
    Bug(
        "steps are planned beyond the window",
        "calm",
        Scheduler,
        "_may_plan",
        {"len(self._unseen) + len(self._in_flight) < self._window": "True"},
        caught_by="beyond the window",
    ),
    Bug(
        "the workers are not told who has ended",
        "calm",
        Scheduler,
        "_flush",
        {"if self._table": "if True or self._table"},
        caught_by="is not idle",
    ),
)

DEVICE = (
    Bug(
        "a RankDone of an ended epoch is heard",
        "faulty",
        Executor,
        "feed",
        {"if epoch > self._failed_epoch:": "if True:"},
    ),
    Bug(
        "the device keeps its batch after a failure",
        "faulty",
        Device,
        "_run",
        {"self._runner.reset()": "pass"},
    ),
    Bug(
        "the device runs the steps after a failure",
        "faulty",
        Device,
        "_run",
        {"step.epoch <= self._failed_epoch": "False"},
    ),
    Bug(
        "a slot is one too far",
        "calm",
        Batch,
        "_inputs",
        {"self.block_size + offset": "self.block_size + (offset + 1) % self.block_size"},
    ),
)

TEXT = (
    Bug(
        "an Abort overtakes its Submit",
        "impatient",
        Renderer,
        "feed",
        {"if request in self._held:": "if False:"},
        caught_by="overtook its Submit",
    ),
    Bug(
        "a request ends twice",
        "impatient",
        Frontend,
        "feed",
        {"self._out.extend(deltas)": "self._out.extend((*deltas, *deltas[:1]))"},
    ),
    Bug(
        "a token is delivered twice",
        "calm",
        Detokenizer,
        "_write",
        {"tokens[:num_tokens]": "tokens[:num_tokens] + tokens[: len(news.tokens)]"},
        caught_by="expected",
    ),
    Bug(
        "tokens come in another order",
        "calm",
        Detokenizer,
        "_write",
        {"news.tokens += tokens[:num_tokens]": "news.tokens = tokens[:num_tokens] + news.tokens"},
    ),
    Bug(
        "a stop string leaks",
        "calm",
        StopMatcher,
        "feed",
        {"len(whole) - automaton.depth[state]": "len(whole)"},
    ),
    Bug(
        "a stop string is found one character too late",
        "calm",
        StopMatcher,
        "feed",
        {"end if self._include": "end + 1 if self._include", "end - len(found)": "end + 1 - len(found)"},
    ),
    Bug(
        "a tombstone goes too early",
        "calm",
        Detokenizer,
        "_write",
        {"self._tombstones.add(request)": "pass"},
    ),
)

BUGS = (*POOL, *SCHEDULER, *DEVICE, *TEXT)
