"""The meter: times and sizes of requests, taken from what two actors hear and say.

No core holds a clock, and none is asked to remember times: a shell gives the time to each turn, and the meter
stands between the shell and the core. It says nothing itself.
"""

from dataclasses import dataclass
from typing import Any

from ..cores import Core
from ..cores.histogram import Histogram, rising
from ..messages import (
    Cancel,
    Delta,
    Ending,
    Failed,
    Fault,
    Rendered,
    RunCommand,
    RunStep,
    StepDone,
    StepFailed,
    Submit,
    Tokens,
    unpack,
    unpack_ids,
)
from .lag import Lag
from .wrapped import Wrapped

SECONDS = rising(0.0005, 1000)
TOKENS = rising(1, 1_000_000)
CHOICES = rising(1, 100)

OBSERVED: dict[str, tuple[float, ...]] = {
    "time_to_first_token_seconds": SECONDS,
    "inter_token_latency_seconds": SECONDS,
    "request_time_per_output_token_seconds": SECONDS,
    "e2e_request_latency_seconds": SECONDS,
    "request_queue_time_seconds": SECONDS,
    "request_prefill_time_seconds": SECONDS,
    "request_decode_time_seconds": SECONDS,
    "request_inference_time_seconds": SECONDS,
    "abort_latency_seconds": SECONDS,
    "event_loop_lag_seconds": SECONDS,
    "request_prompt_tokens": TOKENS,
    "request_generation_tokens": TOKENS,
    "request_params_max_tokens": TOKENS,
    "iteration_tokens_total": TOKENS,
    "request_params_n": CHOICES,
}
"""The histograms of the meter, and their bounds."""

FINISH_REASONS = ("abort", "error", "length", "repetition", "stop", "timeout")
REFUSALS = {"InvalidRequest": "invalid", "Overloaded": "overloaded"}
"""Faults that mean that a request was refused, and what this is called."""


@dataclass(slots=True)
class Asked:
    """An open request as its caller sees it: asked at `since`, told its last token at `last`."""

    since: float
    num_prompt: int = 0
    num_tokens: int = 0
    first: float = 0.0
    last: float = 0.0
    cancelled: float | None = None


@dataclass(slots=True)
class Run:
    """An open request as the Scheduler sees it: when it came, began to run, and had its first token."""

    max_tokens: int
    queued: float
    begun: float | None = None
    spoke: float | None = None


@dataclass(frozen=True, slots=True)
class Sent:
    """A step on its way: when it was said, and how many tokens it computes."""

    at: float
    num_tokens: int


class Meter:
    """All that is measured in a ring: `histograms` by name, and counts since the start.

    `finished` counts requests by how they ended, but for those that were refused, which `refused` counts.
    `num_prompt` tokens were in the prompts that have begun to run, `num_cached` of them were in the cache.
    `steps` are on their way, by (epoch, number). Times are those of the event loop's clock.
    """

    def __init__(self) -> None:
        self.histograms = {name: Histogram(bounds) for name, bounds in OBSERVED.items()}
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.refused = dict.fromkeys(REFUSALS.values(), 0)
        self.num_prompt = self.num_cached = 0
        self.lag = Lag(self.histograms["event_loop_lag_seconds"])
        self.asked: dict[int, Asked] = {}
        self.steps: dict[tuple[int, int], Sent] = {}

    def listen(self, actor: str, core: Core[Any, Any]) -> Core[Any, Any]:
        """The core to be served in the place of this one."""
        if actor == "frontend":
            return _AtFrontend(actor, core, self)
        return _AtScheduler(actor, core, self) if actor == "scheduler" else core

    def observe(self, name: str, value: float) -> None:
        """Count a value in the histogram of this name."""
        self.histograms[name].observe(value)

    def ask(self, choices: int) -> None:
        """A caller asks for so many answers to one prompt."""
        self.observe("request_params_n", choices)

    def enter(self, request: int, since: float) -> None:
        """A request, asked at `since`, has got a seat."""
        if not self.asked:
            self.lag.begin()
        self.asked[request] = Asked(since)

    def time_out(self, seconds: float) -> None:
        """A request has ended at the door, after so many seconds."""
        self._finish("timeout", seconds)

    def end(self, request: int, reason: str, fault: Fault | None, now: float) -> None:
        """The caller's last word of a request."""
        asked = self.asked.pop(request, None)
        if asked is None:
            return
        if not self.asked:
            self.lag.rest()
        if asked.cancelled is not None:
            self.observe("abort_latency_seconds", now - asked.cancelled)
        if fault is not None and fault.kind in REFUSALS:
            self.refused[REFUSALS[fault.kind]] += 1
            return
        self._finish(reason, now - asked.since)
        if asked.num_prompt:
            self.observe("request_prompt_tokens", asked.num_prompt)
            self.observe("request_generation_tokens", asked.num_tokens)
        if asked.num_tokens > 1:
            mean = (asked.last - asked.first) / (asked.num_tokens - 1)
            self.observe("request_time_per_output_token_seconds", mean)

    def step_age(self, now: float) -> float:
        """Seconds that the oldest step has been on its way; 0 without any."""
        return now - min((sent.at for sent in self.steps.values()), default=now)

    def _finish(self, reason: str, seconds: float) -> None:
        self.finished[reason] = self.finished.get(reason, 0) + 1
        self.observe("e2e_request_latency_seconds", seconds)


class _AtFrontend(Wrapped):
    """Hears what callers are told, and when: all that is measured as they see it."""

    def __init__(self, actor: str, core: Core[Any, Any], meter: Meter) -> None:
        super().__init__(actor, core)
        self._meter = meter
        self._cancelled: list[int] = []
        self._between_tokens = meter.histograms["inter_token_latency_seconds"]

    def feed(self, message: Any) -> None:
        """Feed the core, and note who leaves."""
        if type(message) is Cancel:
            self._cancelled.append(message.request)
        self.core.feed(message)

    def poll(self, now: float) -> tuple[Any, ...]:
        """Poll the core, and measure what it says."""
        said: tuple[Any, ...] = self.core.poll(now)
        cancelled, self._cancelled = self._cancelled, []
        for request in cancelled:
            asked = self._meter.asked.get(request)
            if asked is not None and asked.cancelled is None:
                asked.cancelled = now
        intervals: dict[float, int] = {}
        for message in said:
            kind = type(message)
            if kind is Delta:
                self._told(message, now, intervals)
            elif kind is Rendered and message.request in self._meter.asked:
                self._meter.asked[message.request].num_prompt = len(message.tokens) // 4
            elif kind is Failed:
                self._meter.end(message.request, message.reason, message.fault, now)
        for seconds, count in intervals.items():
            self._between_tokens.observe(seconds, count)
        return said

    def _told(self, delta: Delta, now: float, intervals: dict[float, int]) -> None:
        """Several tokens that come at once share the time since the last; those of a first delta have none.

        `intervals` counts the times between tokens: those who run together mostly have the same.
        """
        count = len(delta.tokens) // 4
        asked = self._meter.asked.get(delta.request)
        if count and asked is not None:
            if asked.num_tokens:
                seconds, more = (now - asked.last) / count, count
            else:
                asked.first = now
                self._meter.observe("time_to_first_token_seconds", now - asked.since)
                seconds, more = 0.0, count - 1
            intervals[seconds] = intervals.get(seconds, 0) + more
            asked.num_tokens += count
            asked.last = now
        if delta.finish_reason is not None:
            self._meter.end(delta.request, delta.finish_reason, delta.fault, now)


class _AtScheduler(Wrapped):
    """Hears what is planned, and what comes back: when each request ran, and what each step computed."""

    def __init__(self, actor: str, core: Core[Any, Any], meter: Meter) -> None:
        super().__init__(actor, core)
        self._meter = meter
        self._new: list[Submit] = []
        self._runs: dict[int, Run] = {}
        self._silent: set[int] = set()
        self._failed = -1

    def feed(self, message: Any) -> None:
        """Feed the core, and note what comes in and what comes back."""
        kind = type(message)
        if kind is Submit:
            self._new.append(message)
        elif kind is StepDone:
            self._step_is_done(message)
        elif kind is StepFailed:
            self._failed = message.epoch
            self._meter.steps = {
                key: sent for key, sent in self._meter.steps.items() if key[0] > self._failed
            }
        self.core.feed(message)

    def poll(self, now: float) -> tuple[Any, ...]:
        """Poll the core, and measure what it says."""
        new, self._new = self._new, []
        for submit in new:
            assert submit.limits.max_tokens is not None, "the Renderer sets max_tokens"
            self._runs[submit.request] = Run(submit.limits.max_tokens, now)
        said: tuple[Any, ...] = self.core.poll(now)
        for message in said:
            kind = type(message)
            if kind is RunStep:
                self._step_is_sent(message, now)
            elif kind is RunCommand:
                self._send(message.epoch, message.step, Sent(now, 0))
            elif kind is Tokens:
                self._tell(message, now)
        return said

    def _step_is_sent(self, step: RunStep, now: float) -> None:
        self._send(step.epoch, step.step, Sent(now, sum(unpack(step.num_tokens))))
        for row in step.new:
            run = self._runs[row.request]
            if run.begun is None:
                run.begun = now
                self._silent.add(row.request)
                self._meter.num_prompt += row.num_prompt
                self._meter.num_cached += row.num_computed

    def _send(self, epoch: int, step: int, sent: Sent) -> None:
        """A step is on its way; one of an epoch whose failure was heard this turn comes to nothing."""
        if epoch > self._failed:
            self._meter.steps[epoch, step] = sent

    def _step_is_done(self, done: StepDone) -> None:
        sent = self._meter.steps.pop((done.epoch, done.step), None)
        if sent is not None and sent.num_tokens:
            self._meter.observe("iteration_tokens_total", sent.num_tokens)

    def _tell(self, message: Tokens, now: float) -> None:
        if self._silent:
            for request in self._silent.intersection(unpack_ids(message.requests)):
                self._runs[request].spoke = now
                self._silent.remove(request)
        for ending in message.endings:
            self._end(ending, now)

    def _end(self, ending: Ending, now: float) -> None:
        run = self._runs.pop(ending.request)
        self._silent.discard(ending.request)
        if ending.fault is not None and ending.fault.kind in REFUSALS:
            return
        self._meter.observe("request_params_max_tokens", run.max_tokens)
        if run.begun is not None:
            self._meter.observe("request_queue_time_seconds", run.begun - run.queued)
        if run.begun is not None and run.spoke is not None:
            self._meter.observe("request_prefill_time_seconds", run.spoke - run.begun)
            self._meter.observe("request_decode_time_seconds", now - run.spoke)
            self._meter.observe("request_inference_time_seconds", now - run.begun)
