"""Bugs to plant in the ring: Scheduler, commands, device and text side."""

import actorllm.cores.scheduler as scheduler
from actorllm.actors.worker import Device
from actorllm.cores.admission import Admission
from actorllm.cores.batch import Batch
from actorllm.cores.detokenizer import Detokenizer
from actorllm.cores.executor import Executor
from actorllm.cores.frontend import Frontend
from actorllm.cores.gate import Gate
from actorllm.cores.plan import Said, Wants
from actorllm.cores.renderer import Renderer
from actorllm.cores.requests import Request, WaitingQueue
from actorllm.cores.scheduler import Scheduler
from actorllm.cores.table import Table
from actorllm.cores.text import StopMatcher
from actorllm.cores.timeouts import Timeouts

from .planted import Bug

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
        {"Status.ENDED:": "Status.ENDED or life != request.life:"},
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
        "the first crash convicts",
        "faulty",
        Table,
        "blame",
        {"request.num_crashes < CRASHES": "False"},
        caught_by="failed by the first step",
    ),
    Bug(
        "a crash is never forgotten",
        "faulty",
        Request,
        "crash",
        {"1 if self.is_past_crash else ": ""},
        caught_by="failed by the first step",
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
        "who would find a free seat is queued",
        "impatient",
        Admission,
        "refusal",
        {"max(0, self._seats - self.num_begun)": "0"},
        caught_by="while a seat is free",
    ),
    Bug(
        "what has ended is kept for its timeouts",
        "impatient",
        Timeouts,
        "ended",
        {"self._num_ended > self._num_open": "False"},
        caught_by="kept for their timeouts",
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
        Table,
        "blame",
        {"len(requests) == 1": "True"},
        caught_by="failed by a step",
    ),
    Bug(
        "who has left was never in the step that raised",
        "mixed",
        Table,
        "blame",
        {"len(requests) == 1": "sum(each.status is not Status.ENDED for each in requests) == 1"},
        caught_by="failed by a step",
        settings={"raises": 0.4},
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
        Wants,
        "add",
        {"end >= request.max_len": "end > request.max_len"},
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
        {"not self._table.leaving": "True"},
        caught_by="is not idle",
    ),
    Bug(
        "while blocks are short nobody is offered",
        "tight",
        Scheduler,
        "_offer_more_or_less",
        {"max(most, 1)": "most"},
        caught_by="never ended",
    ),
    Bug(
        "the blocks of who has ended go to those behind",
        "impatient",
        scheduler,
        "without",
        {"compress(zip(ends, counts, strict=True), stays)": "zip(ends, counts, strict=True)"},
    ),
)

COMMANDS = (
    Bug(
        "a pause is answered while a step is on its way",
        "calm",
        Scheduler,
        "poll",
        {"(self._in_flight or": "(self._in_flight and 'pause' not in repr(self._gate._command) or"},
        caught_by="while a step is on its way",
    ),
    Bug(
        "steps are planned in a pause",
        "calm",
        Gate,
        "is_open",
        {"self.is_paused or ": ""},
        caught_by="in spite of",
    ),
    Bug(
        "steps are planned while the engine is asleep",
        "calm",
        Gate,
        "is_open",
        {"self.is_asleep or ": ""},
        caught_by="in spite of",
    ),
    Bug(
        "steps are planned while a command is open",
        "calm",
        Gate,
        "is_open",
        {" or self._command is not None": ""},
    ),
    Bug(
        "a sleep keeps what the pool holds",
        "calm",
        Gate,
        "begin",
        {"ends_epoch=True, runs=True": "runs=True"},
    ),
    Bug(
        "a command is answered twice",
        "calm",
        Scheduler,
        "_command_answered",
        {"append(done)": "extend((done, done))"},
    ),
    Bug(
        "a command is never answered",
        "calm",
        Scheduler,
        "_command_answered",
        {"append(done)": "extend(())"},
    ),
    Bug(
        "a command that has failed is never answered",
        "faulty",
        Scheduler,
        "_command_answered",
        {"append(done)": "extend(() if done.fault else (done,))"},
        caught_by="never ended",
    ),
    Bug(
        "a command whose step raised is done all the same",
        "faulty",
        Scheduler,
        "_step_has_failed",
        {"self._command_answered(message.fault)": "pass"},
        caught_by="whose step raised",
    ),
    Bug(
        "the device runs the steps after a reset that raised",
        "faulty",
        Device,
        "_run",
        {
            "    try:\n        if": "    if",
            "    self._epoch = ": "self._epoch = ",
            "        self._runner.reset()\n": "    self._runner.reset()\n    try:\n",
        },
    ),
    Bug(
        "a command that has failed is done all the same",
        "faulty",
        Gate,
        "answered",
        {"self.finish(fault)": "self.finish()"},
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
        "_pass_on",
        {"self._out.append(delta)": "self._out += [delta, delta]"},
    ),
    Bug(
        "a token is delivered twice",
        "calm",
        Detokenizer,
        "_write",
        {"tokens[:num_tokens]": "tokens[:num_tokens] + tokens[: len(news.tokens)]"},
        caught_by="expected",
        settings={"logprobs": 0.0},
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
        {"automaton.depth[state]": "0"},
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

RING = (*SCHEDULER, *COMMANDS, *DEVICE, *TEXT)
