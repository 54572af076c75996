"""Bugs to plant around grammars: masks, matchers, and what compiles them."""

import actorllm.actors.grammar as jobs
import actorllm.model.hash as model
from actorllm.cores.executor import Executor
from actorllm.cores.grammar import Grammar
from actorllm.cores.scheduler import Scheduler
from actorllm.cores.table import Table
from actorllm.cores.worker import Worker

from .planted import Bug

CONSTRAINED = {"grammar": 0.8}

MASKS = (
    Bug(
        "a step does not wait for its masks",
        "calm",
        Scheduler,
        "_run",
        {"bool(step.masked)": "False"},
        caught_by="under grammars waits",
    ),
    Bug(
        "masks are asked for before the last token is said",
        "calm",
        Scheduler,
        "_step_is_done",
        {
            "self._table.said.advance()\n": "",
            "self._ask_for_masks()": "self._ask_for_masks(); self._table.said.advance()",
        },
        caught_by="are said",
        settings=CONSTRAINED,
    ),
    Bug(
        "masks are asked for with the step",
        "calm",
        Scheduler,
        "_grant",
        {
            "if is_next:": "if step.masked:",
            "self._ask_for_masks()": "self._table.said.others.append("
            "MaskStep(step.number, self._epoch, pack_ids(step.masked)))",
        },
        caught_by="are asked for before step",
        settings=CONSTRAINED,
    ),
    Bug(
        "the masks of a step behind another are never asked for",
        "calm",
        Scheduler,
        "_step_is_done",
        {"self._ask_for_masks()": "pass"},
        caught_by="nobody asks for the masks",
        settings=CONSTRAINED,
    ),
    Bug(
        "the masks of a step are filled in another order",
        "calm",
        jobs,
        "fill",
        {"grammars.fill(asked)": "grammars.fill(asked[::-1])"},
        settings=CONSTRAINED,
    ),
    Bug(
        "matchers take the tokens of a step twice",
        "calm",
        Grammar,
        "_fill",
        {
            "pack_ids(self._new_requests), []": "pack_ids(self._new_requests), self._new_requests",
            "pack(self._new_tokens), []": "pack(self._new_tokens), self._new_tokens",
        },
        settings=CONSTRAINED,
    ),
    Bug(
        "the tokens of others are forgotten when a request is dropped",
        "calm",
        Grammar,
        "_drop",
        {"if not self._matchers:": "if True:"},
        settings=CONSTRAINED,
    ),
    Bug(
        "the device gives the masks to other rows",
        "calm",
        model,
        "masks_of",
        {"zip(requests, rows": "zip(requests[::-1], rows"},
        settings=CONSTRAINED,
    ),
    Bug(
        "a step takes the masks of the one before",
        "calm",
        Worker,
        "_hand_over",
        {
            "self._masks.pop(self._waiting.step, None)": "self._masks.get("
            "next(iter(self._masks), -1), self._masks.get(self._waiting.step))",
        },
        caught_by="gets the masks of step",
        settings=CONSTRAINED,
    ),
    Bug(
        "the masks of an ended epoch are taken",
        "faulty",
        Worker,
        "feed",
        {"epoch > self._failed_epoch and epoch >= self._epoch": "True"},
        caught_by="gets the masks of step",
        settings=CONSTRAINED,
        also=Bug(
            "and not forgotten with the next",
            "faulty",
            Worker,
            "_forget_before",
            {" if mask.epoch >= epoch": ""},
            also=Bug(
                "whatever their step is",
                "faulty",
                Worker,
                "_hand_over",
                {"pop(self._waiting.step, None)": "pop(next(iter(self._masks), None), None)"},
            ),
        ),
    ),
    Bug(
        "the masks of an ended epoch are kept",
        "faulty",
        Worker,
        "feed",
        {"epoch > self._failed_epoch and epoch >= self._epoch": "True"},
        caught_by="the worker is not idle",
        settings=CONSTRAINED,
    ),
    Bug(
        "an epoch is over before its masks have come",
        "faulty",
        Executor,
        "_fail",
        {"first not in self._sampled": "False"},
        caught_by="messages from grammar to executor",
        settings=CONSTRAINED,
    ),
    Bug(
        "an epoch is never over whose masks come late",
        "faulty",
        Executor,
        "_sample",
        {"self._out.append(self._failing)": "pass"},
        settings=CONSTRAINED,
    ),
    Bug(
        "the next step begins before the last has sampled",
        "calm",
        Worker,
        "_hand_over",
        {
            "if self._waiting is not None:": "if self._waiting is not None and "
            "(self._waiting.step in self._masks or not self._queue):"
        },
        caught_by="before the last one has sampled",
        settings=CONSTRAINED,
    ),
)

MATCHERS = (
    Bug(
        "a matcher is never closed",
        "calm",
        Table,
        "end",
        {"self.said.others.append(Drop(request.id))": "pass"},
    ),
    Bug(
        "a matcher is forgotten, and stays open",
        "calm",
        Grammar,
        "_drop",
        {"self._grammars.close(request)": "pass"},
        caught_by="matchers are open",
    ),
    Bug(
        "a request is dropped twice",
        "impatient",
        Table,
        "_finish",
        {"if request.verdict is None:": "if True:"},
        caught_by="is dropped twice",
        settings={**CONSTRAINED, "timeouts": 0.4, "aborts": 1.0},
    ),
    Bug(
        "the token of a preempted request is not said to Grammar",
        "tight",
        Table,
        "accept",
        {"request.limits.grammar is not None:": "request.limits.grammar is not None and request.in_batch:"},
        caught_by="are not said to Grammar",
        settings=CONSTRAINED,
    ),
    Bug(
        "a token is said to Grammar twice",
        "calm",
        Table,
        "accept",
        {"self.said.advanced.append((request.id, token))": "self.said.advanced += [(request.id, token)] * 2"},
        caught_by="is none or was said",
    ),
    Bug(
        "the tokens of an ended epoch are said to Grammar again",
        "faulty",
        Table,
        "_restart",
        {
            "request.restart()": "request.restart(); request.limits.grammar and self.said.advanced.extend("
            "(request.id, token) for token in request.tokens[request.num_prompt :])",
        },
        caught_by="is said to Grammar",
        settings=CONSTRAINED,
    ),
    Bug(
        "a request goes on whose token did not fit",
        "calm",
        Table,
        "_grammar_ready",
        {
            "elif fault is not None:": "elif fault is not None and request.status is not Status.RUNNING:",
            "else:": "elif fault is None:",
        },
        caught_by="go on without their grammars",
        settings=CONSTRAINED,
    ),
    Bug(
        "a matcher whose token did not fit stays open",
        "calm",
        Grammar,
        "_filled",
        {"self._grammars.close(request)": "pass"},
        caught_by="matchers are open",
        settings=CONSTRAINED,
    ),
)

COMPILING = (
    Bug(
        "who is dropped while it compiles is not answered",
        "impatient",
        Grammar,
        "_drop",
        {"self._out.append(GrammarReady(request))": "pass"},
        settings=CONSTRAINED,
    ),
    Bug(
        "who is dropped while it compiles is answered once more",
        "impatient",
        Grammar,
        "_drop",
        {"compiling.waiting.remove(request)": "pass"},
        settings=CONSTRAINED,
    ),
    Bug(
        "who waits for a grammar that is late is forgotten",
        "calm",
        Grammar,
        "poll",
        {"self._answer(compiling, self._late())": "pass"},
        caught_by="that was due at",
        settings=CONSTRAINED,
    ),
    Bug(
        "who comes when a grammar is late already waits for it",
        "calm",
        Grammar,
        "_compile",
        {"if compiling.is_late:": "if False:"},
        caught_by="that was due at",
        settings={**CONSTRAINED, "grammar_timeout": 20, "longest_compile": 400},
    ),
    Bug(
        "nobody wakes when a grammar is late",
        "calm",
        Grammar,
        "deadline",
        {"min(dues, default=NEVER)": "NEVER"},
        caught_by="nobody wakes for it",
        settings={**CONSTRAINED, "grammar_timeout": 20, "longest_compile": 400},
    ),
    Bug(
        "a grammar is late too early",
        "calm",
        Grammar,
        "poll",
        {"now + self._timeout": "now + self._timeout / 2"},
        caught_by="that their grammars are late",
        settings=CONSTRAINED,
    ),
    Bug(
        "one of those who share a job hears nothing",
        "calm",
        Grammar,
        "_answer",
        {"for request in waiting:": "for request in waiting[-1:]:"},
        settings=CONSTRAINED,
    ),
    Bug(
        "a grammar that is forgotten stays",
        "calm",
        Grammar,
        "_make_room",
        {"self._grammars.forget(grammar)": "pass"},
        caught_by="grammars are kept",
        settings=CONSTRAINED,
    ),
    Bug(
        "what could not be compiled counts as ready",
        "calm",
        Grammar,
        "_job_done",
        {"self._answer(compiling, done.fault)": "self._answer(compiling, None)"},
        settings=CONSTRAINED,
    ),
)

GRAMMAR = (*MASKS, *MATCHERS, *COMPILING)
