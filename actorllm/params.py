"""What a caller says about one request: SamplingParams, with vLLM's names and defaults."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypedDict

from .errors import InvalidRequest
from .messages import CacheKey, Limits, Sampling, Terms, TextRules

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy, as in vLLM."""

MAX_N = 1024
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1000
MAX_NAME = 1000
"""Characters of a tenant or a cache salt."""

MAX_TIMEOUT = 10.0**9


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it ends. Raises InvalidRequest for what cannot be.

    n                 answers to one prompt, each a request of its own; a seed counts up from one to the next.
                      When the engine refuses one of them because too many wait, all fail; of more than
                      max_num_seqs + max_num_queued_reqs it always refuses some.
    temperature       0 is greedy; up to 2. None: the model's own default (else 1).
    top_k             draw among the k most likely tokens; 0 or -1 is off. None: the model's (else 0).
    top_p             draw among the most likely tokens whose mass reaches p, in (0, 1]. None: the model's.
    min_p             drop tokens less likely than min_p times the most likely, in [0, 1]. None: the model's.
    seed              the same seed gives the same tokens for the same logits; None draws one. In bfloat16
                      the logits may differ in their last bits with what else is in the batch.
    max_tokens        at most so many tokens; None is the rest of the context (vLLM's default is 16).
    stop              up to 16 strings of up to 1000 characters; the text ends before the first that appears.
    stop_token_ids    tokens that end the answer, besides the model's own end tokens.
    include_stop_str_in_output   keep the stop string (or the stop token's text) in the text.
    ignore_eos        go on after the model's end tokens.
    skip_special_tokens          leave special tokens out of the text.
    detokenize        False: only token ids, no text (then `stop` is not possible).
    structured_outputs           a grammar for the answer. The Grammar actor refuses all of them as yet.
    """

    n: int = 1
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    max_tokens: int | None = 16
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    structured_outputs: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        """Bring the fields to their final form, of plain types; raise InvalidRequest where one cannot be."""
        for name, value in (
            ("n", _integer(self.n, "n", 1, MAX_N)),
            ("temperature", _number_or_none(self.temperature, "temperature", 0, 2)),
            ("top_p", _number_or_none(self.top_p, "top_p", 0, 1, open_below=True)),
            ("min_p", _number_or_none(self.min_p, "min_p", 0, 1)),
            ("top_k", _integer_or_none(self.top_k, "top_k", -1)),
            ("max_tokens", _integer_or_none(self.max_tokens, "max_tokens", 1)),
            ("seed", _integer_or_none(self.seed, "seed", -(2**63), 2**63 - 1)),
            ("stop", _stop_strings(self.stop)),
            ("stop_token_ids", _stop_tokens(self.stop_token_ids)),
        ):
            object.__setattr__(self, name, value)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(f"{name} must be true or false", name)
        if self.temperature is not None:
            self._check_n(self.temperature)
        if self.stop and not self.detokenize:
            raise InvalidRequest("stop needs detokenize=True", "stop")

    def _check_n(self, temperature: float) -> None:
        if self.n > 1 and temperature < GREEDY_BELOW:
            raise InvalidRequest(f"n must be 1 when sampling is greedy: all {self.n} would be equal", "n")

    def sampling(self, defaults: Sampling) -> Sampling:
        """The worker's part; what is None here comes from `defaults` (the model's).

        Raises InvalidRequest for several answers of a model that is greedy by default.
        """
        temperature = _first(self.temperature, defaults.temperature)
        self._check_n(temperature)
        if temperature < GREEDY_BELOW:
            return Sampling(temperature=0.0, seed=self.seed)
        return Sampling(
            temperature=float(temperature),
            top_k=max(0, int(_first(self.top_k, defaults.top_k))),
            top_p=float(_first(self.top_p, defaults.top_p)),
            min_p=float(_first(self.min_p, defaults.min_p)),
            seed=self.seed,
        )

    def limits(self) -> Limits:
        """The Scheduler's part."""
        return Limits(self.max_tokens, tuple(self.stop_token_ids), self.ignore_eos, self._grammar())

    def text_rules(self) -> TextRules:
        """The Detokenizer's part."""
        return TextRules(
            tuple(self.stop),
            self.include_stop_str_in_output,
            self.skip_special_tokens,
            self.detokenize,
        )

    def _grammar(self) -> str | None:
        return None if self.structured_outputs is None else repr(self.structured_outputs)


class Service(TypedDict, total=False):
    """On whose behalf a request runs, and how soon.

    priority       with the policy `priority`, a lower one is served sooner (default 0)
    tenant         with the policy `fair`, tokens are shared between tenants (default "")
    queue_timeout  seconds after which it ends unless it has begun to run
    ttft_timeout   seconds after which it ends unless it has its first token
    timeout        seconds after which it ends; with the policy `deadline`, the sooner the earlier served
                   (all three run from the stream's first `await`, for each of its n answers and while it
                   waits for a place in the engine; only the time to render the prompt is not counted)
    cache_salt     it shares cached prefixes only with requests of the same salt, a text of up to 1000
                   characters (default "": with all that have none)
    """

    priority: int
    tenant: str
    queue_timeout: float | None
    ttft_timeout: float | None
    timeout: float | None
    cache_salt: str


def terms(service: Service) -> Terms:
    """The Scheduler's part of it. Raises InvalidRequest for what cannot be."""
    for name in service:
        if name not in Service.__annotations__:
            raise InvalidRequest(
                f"unknown argument {name!r}; known are {', '.join(Service.__annotations__)}", name
            )
    return Terms(
        _integer(service.get("priority", 0), "priority", -(2**31)),
        _name(service.get("tenant", ""), "tenant"),
        _number_or_none(service.get("queue_timeout"), "queue_timeout", 0, MAX_TIMEOUT),
        _number_or_none(service.get("ttft_timeout"), "ttft_timeout", 0, MAX_TIMEOUT),
        _number_or_none(service.get("timeout"), "timeout", 0, MAX_TIMEOUT),
    )


def cache_key(service: Service) -> CacheKey | None:
    """The KVPool's part of it; None without a salt. Raises InvalidRequest for what cannot be."""
    salt = _name(service.get("cache_salt", ""), "cache_salt")
    return CacheKey(salt) if salt else None


def plain(text: str) -> str:
    """The same text as a `str`, of which messages are made, when it was of a class derived from it."""
    return str.__str__(text)


_FLAGS = ("include_stop_str_in_output", "ignore_eos", "skip_special_tokens", "detokenize")


def _first(given: float | None, default: float) -> float:
    return default if given is None else given


def _sequence(value: Any, name: str) -> tuple[Any, ...]:
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise InvalidRequest(f"{name} must be a list, not {type(value).__name__}", name)
    return tuple(value)


def _stop_strings(value: Any) -> tuple[str, ...]:
    stop = (value,) if isinstance(value, str) else _sequence(value, "stop")
    if len(stop) > MAX_STOP_STRINGS:
        raise InvalidRequest(f"stop has {len(stop)} strings; at most {MAX_STOP_STRINGS}", "stop")
    for text in stop:
        if not isinstance(text, str) or not text:
            raise InvalidRequest(f"stop must be non-empty strings, not {text!r}", "stop")
        if len(text) > MAX_STOP_LENGTH:
            reason = f"a stop string has {len(text)} characters; at most {MAX_STOP_LENGTH}"
            raise InvalidRequest(reason, "stop")
    return tuple(map(plain, stop))


def _stop_tokens(value: Any) -> tuple[int, ...]:
    return tuple(_integer(token, "stop_token_ids", 0) for token in _sequence(value, "stop_token_ids"))


def _name(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise InvalidRequest(f"{name} must be a string, not {type(value).__name__}", name)
    if len(value) > MAX_NAME or not value.isprintable():
        text = f"{name} must be at most {MAX_NAME} printable characters, not {value[:40]!r}"
        raise InvalidRequest(text, name)
    return plain(value)


def _number(value: Any, name: str, low: float, high: float, *, open_below: bool = False) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InvalidRequest(f"{name} must be a number, not {type(value).__name__}", name)
    inside = low < value <= high if open_below else low <= value <= high
    if not inside:
        bracket = "(" if open_below else "["
        raise InvalidRequest(f"{name} must be in {bracket}{low}, {high}], not {value}", name)
    return float(value)


def _number_or_none(
    value: Any, name: str, low: float, high: float, *, open_below: bool = False
) -> float | None:
    return None if value is None else _number(value, name, low, high, open_below=open_below)


def _integer(value: Any, name: str, low: int, high: int = 2**31 - 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidRequest(f"{name} must be an integer, not {type(value).__name__}", name)
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be between {low} and {high}, not {value}", name)
    return int(value)


def _integer_or_none(value: Any, name: str, low: int, high: int = 2**31 - 1) -> int | None:
    return None if value is None else _integer(value, name, low, high)
