"""What is told of an engine: every metric, with what it means and where it is read."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from ..config import EngineConfig
from ..cores.detokenizer import DetokenizerStatistics
from ..cores.executor import ExecutorStatistics
from ..cores.grammar import GrammarStatistics
from ..cores.histogram import Distribution
from ..cores.kvpool import KVPoolStatistics
from ..cores.renderer import RendererStatistics
from ..cores.scheduler import SchedulerStatistics
from ..cores.worker import WorkerStatistics
from .door import Backlog
from .meter import Meter

Labels = tuple[str, ...]
Value = float | Distribution
Values = Mapping[Labels, Value]
"""A value for each tuple of values of the labels."""


@dataclass(frozen=True, slots=True)
class View:
    """What metrics are read from, at one moment.

    `depths` and `capacities` are those of the mailboxes by actor, `num_lost` what each tap has lost.
    """

    config: EngineConfig
    scheduler: SchedulerStatistics
    kvpool: KVPoolStatistics
    renderer: RendererStatistics
    detokenizer: DetokenizerStatistics
    grammar: GrammarStatistics
    executor: ExecutorStatistics
    worker: WorkerStatistics
    meter: Meter
    backlog: Backlog
    step_age: float
    num_open: int
    num_at_door: int
    num_turns_lost: int
    depths: Mapping[str, int]
    capacities: Mapping[str, float]
    num_lost: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Definition:
    """A metric: its kind is gauge, counter or histogram. A counter's name is without the suffix `_total`."""

    name: str
    kind: str
    labels: Labels
    meaning: str
    read: Callable[[View], Values]


def _gauge(name: str, meaning: str, read: Callable[[View], float]) -> Definition:
    return Definition(name, "gauge", (), meaning, lambda view: {(): read(view)})


def _counter(name: str, meaning: str, read: Callable[[View], float]) -> Definition:
    return Definition(name, "counter", (), meaning, lambda view: {(): read(view)})


def _gauges(name: str, label: str, meaning: str, read: Callable[[View], Mapping[str, float]]) -> Definition:
    return Definition(name, "gauge", (label,), meaning, lambda view: _each(read(view)))


def _counters(name: str, label: str, meaning: str, read: Callable[[View], Mapping[str, float]]) -> Definition:
    return Definition(name, "counter", (label,), meaning, lambda view: _each(read(view)))


def _each(values: Mapping[str, float]) -> Values:
    return {(label,): value for label, value in values.items()}


def _histogram(name: str, meaning: str) -> Definition:
    """One that the meter keeps under this name."""
    return Definition(name, "histogram", (), meaning, lambda view: {(): view.meter.histograms[name].read()})


def _sleep_state(view: View) -> Mapping[str, float]:
    asleep = view.scheduler.state == "asleep"
    return {"awake": not asleep, "weights_offloaded": 0, "discard_all": asleep}


CACHE_LABELS = ("block_size", "cache_dtype", "enable_prefix_caching", "num_gpu_blocks", "watermark")


def _cache_config(view: View) -> Values:
    config, blocks = view.config, view.kvpool.num_blocks
    caches = config.enable_prefix_caching
    values = (config.block_size, config.kv_cache_dtype, caches, blocks, config.watermark)
    return {tuple(map(str, values)): 1}


REQUESTS = (
    _gauge("num_requests_running", "requests in the batch", lambda view: view.scheduler.num_running),
    _gauge(
        "num_requests_waiting",
        "requests that wait for a seat in the batch or for their grammar, also those that were preempted",
        lambda view: view.scheduler.num_waiting,
    ),
    _gauge(
        "num_requests_rendering",
        "requests whose prompt is being made into tokens",
        lambda view: view.renderer.num_rendering,
    ),
    _gauge("num_requests_open", "requests inside the engine, wherever they are", lambda view: view.num_open),
    _gauge(
        "num_callers_waiting",
        "callers that wait outside, because `max_requests` are inside",
        lambda view: view.num_at_door,
    ),
    _gauge(
        "num_requests_on_probation",
        "requests that must run alone, since steps have crashed with them",
        lambda view: view.scheduler.num_on_probation,
    ),
    _gauge(
        "num_queued_tokens",
        "tokens of prompts that have not begun to run",
        lambda view: view.scheduler.num_queued_tokens,
    ),
    _counters(
        "request_success",
        "finished_reason",
        "requests that have ended, however that was, but for those that were refused",
        lambda view: view.meter.finished,
    ),
    _counters(
        "admission_rejections",
        "reason",
        "requests that were refused: they were invalid, or too many waited (overloaded)",
        lambda view: view.meter.refused,
    ),
    _counter(
        "num_preemptions",
        "times that a running request had to give its blocks or its seat to another",
        lambda view: view.scheduler.num_preemptions,
    ),
    Definition(
        "request_num_preemptions",
        "histogram",
        (),
        "preemptions of each request that has run and ended",
        lambda view: {(): view.scheduler.preemptions},
    ),
)

TIMES = (
    _histogram(
        "time_to_first_token_seconds",
        "from the first `await` of a caller to the first token in his cell, the wait outside included",
    ),
    _histogram("inter_token_latency_seconds", "from one token to the next, as they come into the cell"),
    _histogram(
        "request_time_per_output_token_seconds",
        "the mean time from one token to the next, of each request that has ended with two or more",
    ),
    _histogram(
        "e2e_request_latency_seconds",
        "from the first `await` to the end, of every request in request_success",
    ),
    _histogram(
        "request_queue_time_seconds",
        "from the Scheduler's hearing of a request to its first step, of those that have run and ended",
    ),
    _histogram(
        "request_prefill_time_seconds",
        "from a request's first step to its first token, of those that have a token and have ended",
    ),
    _histogram(
        "request_decode_time_seconds",
        "from the first token to the end, of those that have a token and have ended",
    ),
    _histogram(
        "request_inference_time_seconds",
        "from the first step to the end, of those that have a token and have ended",
    ),
    _histogram(
        "abort_latency_seconds",
        "from the Frontend's hearing that nobody wants a request any more to its end",
    ),
)

TOKENS = (
    _counter(
        "prompt_tokens", "tokens of the prompts that have begun to run", lambda view: view.meter.num_prompt
    ),
    _counter(
        "prompt_tokens_cached",
        "tokens of the prompts that have begun to run, found in the prefix cache",
        lambda view: view.meter.num_cached,
    ),
    _counter(
        "generation_tokens",
        "tokens of answers, as their callers get them",
        lambda view: view.detokenizer.tokens,
    ),
    _counters(
        "dropped_tokens",
        "reason",
        "tokens that were computed for nobody: their request had ended, or a stop string was before them",
        lambda view: {
            "request_ended": view.scheduler.num_late_tokens,
            "stop_string": view.detokenizer.dropped,
        },
    ),
    _histogram(
        "request_prompt_tokens", "tokens of the prompt, of requests that were accepted and have ended"
    ),
    _histogram(
        "request_generation_tokens", "tokens of the answer, of requests that were accepted and have ended"
    ),
    _histogram(
        "request_params_max_tokens", "the most tokens that an answer could have had, when it has ended"
    ),
    _histogram("request_params_n", "answers that are asked for to one prompt, at each call"),
)

CACHE = (
    _gauge(
        "kv_cache_usage_perc",
        "share of the KV blocks that are held, from 0 to 1",
        lambda view: view.kvpool.usage,
    ),
    _gauge(
        "kv_cache_blocks_cached",
        "KV blocks whose content can be found, held or not",
        lambda view: view.kvpool.num_cached_blocks,
    ),
    _counter(
        "prefix_cache_queries",
        "tokens of requests that were let in, and let in again after a preemption",
        lambda view: view.kvpool.queried_tokens,
    ),
    _counter(
        "prefix_cache_hits",
        "tokens among prefix_cache_queries whose KV was found",
        lambda view: view.kvpool.hit_tokens,
    ),
    _counter(
        "kv_cache_evictions",
        "contents that were forgotten because their block was needed",
        lambda view: view.kvpool.evictions,
    ),
    Definition("cache_config_info", "gauge", CACHE_LABELS, "1; the labels are the settings", _cache_config),
)

STEPS = (
    _gauge("steps_in_flight", "steps on their way", lambda view: view.scheduler.steps_in_flight),
    _gauge(
        "step_age_seconds",
        "since when the oldest step is on its way; it grows as long as the device hangs",
        lambda view: view.step_age,
    ),
    _counter("steps", "steps that were sent to the workers", lambda view: view.scheduler.num_steps),
    _histogram("iteration_tokens_total", "tokens, of prompts and of answers, that a step has computed"),
    _counters(
        "failed_steps",
        "actor",
        "steps that raised, as each actor has counted them",
        lambda view: {
            "scheduler": view.scheduler.num_failed_steps,
            "executor": view.executor.num_failed,
            "worker": view.worker.num_failed,
        },
    ),
    _counter(
        "epochs",
        "times that all KV was given up and everyone planned anew: after a failed step, or a sleep",
        lambda view: view.executor.epoch,
    ),
    _gauges(
        "engine_sleep_state",
        "sleep_state",
        "1 for the state that the engine is in; weights are never offloaded here",
        _sleep_state,
    ),
    _gauge("engine_paused", "1 while no steps are planned", lambda view: view.scheduler.state == "paused"),
)

ACTORS = (
    _gauges(
        "mailbox_depth",
        "actor",
        "messages that wait for the actor, with the one that it is waking up for",
        lambda view: view.depths,
    ),
    _gauges(
        "mailbox_capacity",
        "actor",
        "messages that may wait for it: the sum of the windows of all who write to it",
        lambda view: view.capacities,
    ),
    _gauge(
        "output_backlog_tokens",
        "tokens that have come for callers and are unread",
        lambda view: view.backlog.tokens,
    ),
    _gauge(
        "output_backlog_characters",
        "characters that have come for callers and are unread",
        lambda view: view.backlog.characters,
    ),
    _gauge("output_backlog_cells", "answers of which something is unread", lambda view: view.backlog.cells),
    _histogram(
        "event_loop_lag_seconds",
        "how late the event loop wakes a task, asked ten times a second while requests are open",
    ),
    _gauge(
        "event_loop_lag_max_seconds",
        "the greatest event_loop_lag_seconds since the start",
        lambda view: view.meter.lag.longest,
    ),
    _counters("tap_lost", "tap", "messages that came too fast for a tap", lambda view: view.num_lost),
    _counter("record_lost", "turns that are not in the recording", lambda view: view.num_turns_lost),
)

GRAMMARS = (
    _gauge("grammars_compiled", "grammars that are kept", lambda view: view.grammar.num_compiled),
    _gauge("grammars_compiling", "grammars that are being compiled", lambda view: view.grammar.num_compiling),
    _gauge("grammar_bytes", "bytes of the grammars that are kept", lambda view: view.grammar.num_bytes),
    _gauge("grammar_matchers", "requests that are bound to one now", lambda view: view.grammar.num_matchers),
    _counters(
        "grammar_requests",
        "found",
        "requests with a grammar: it was compiled already (hit), or was not (miss)",
        lambda view: {"hit": view.grammar.num_hits, "miss": view.grammar.num_misses},
    ),
    _counters(
        "grammar_failures",
        "reason",
        "requests whose grammar took too long (timeout) or could not be followed (stuck), and grammars that "
        "could not be compiled (failed)",
        lambda view: {
            "timeout": view.grammar.num_timeouts,
            "stuck": view.grammar.num_stuck,
            "failed": view.grammar.num_failed,
        },
    ),
    _counter("grammar_masks", "masks that were made, one a token", lambda view: view.grammar.num_masks),
)

DEFINITIONS = (*REQUESTS, *TIMES, *TOKENS, *CACHE, *STEPS, *ACTORS, *GRAMMARS)
