"""What a caller says about one request: SamplingParams, with vLLM's names and defaults."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import chain
from struct import pack as pack_struct
from typing import Any

from . import checks as check
from .errors import InvalidRequest
from .messages import Limits, Repetition, Sampling, TextRules, Thinking, pack
from .structured.spec import spec

GREEDY_BELOW = 1e-5
"""A temperature below this is greedy, as in vLLM."""

MAX_N = 1024
MAX_STOP_STRINGS = 16
MAX_STOP_LENGTH = 1000
MAX_BAD_WORDS = 128
MAX_LOGPROB_TOKENS = 128
MAX_BIAS = 100.0


class RequestOutputKind(Enum):
    """What the text, tokens and log-probabilities of an output are: all so far, only what is new, or all at
    the end.
    """

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RepetitionDetection:
    """End an answer that goes round in circles, with finish_reason `repetition`.

    Its last tokens are one pattern of `min_pattern_size` to `max_pattern_size` tokens, `min_count` times in a
    row. Raises InvalidRequest for what cannot be.
    """

    max_pattern_size: int
    min_pattern_size: int = 1
    min_count: int = 2

    def __post_init__(self) -> None:
        """Bring the sizes to plain integers."""
        for name, low, high in (
            ("max_pattern_size", 1, 1000),
            ("min_pattern_size", 1, self.max_pattern_size),
            ("min_count", 2, 1000),
        ):
            plain = check.integer(getattr(self, name), f"repetition_detection.{name}", low, high)
            object.__setattr__(self, name, plain)


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How one request is sampled and when it ends. Raises InvalidRequest for what cannot be.

    What changes the distribution does so in this order: allowed_token_ids, bad_words, min_tokens, logit_bias,
    custom processors, penalties, thinking_token_budget, temperature, min_p, top_k, top_p. A grammar stands
    above all of them: where they leave nothing that it allows, it decides alone.

    n                 answers to one prompt, each a request of its own; a seed counts up from one to the next.
                      When the engine refuses one of them because too many wait, all fail; of more than
                      max_num_seqs + max_num_queued_reqs it always refuses some.
    temperature       0 is greedy; up to 2. None: the model's own default (else 1).
    top_k             draw among the k most likely tokens; 0 or -1 is off. None: the model's (else 0).
    top_p             draw among the most likely tokens whose mass reaches p, in (0, 1]. None: the model's.
    min_p             drop tokens less likely than min_p times the most likely, in [0, 1]. None: the model's.
    seed              the same seed gives the same tokens for the same logits; None draws one. In float32 the
                      logits may differ in their last bits with what else is in the batch, unless
                      EngineConfig.batch_invariant is true.
    presence_penalty  subtracted from the logits of tokens that the answer has, in [-2, 2].
    frequency_penalty    the same for each time that it has them.
    repetition_penalty   above 1 makes tokens of prompt and answer less likely (CTRL, arXiv 1909.05858).
                      None: the model's (else 1).
    max_tokens        at most so many tokens; None is the rest of the context (vLLM's default is 16).
    min_tokens        the answer does not end by a token before it has so many, and stop strings are looked
                      for behind them.
    stop              up to 16 strings of up to 1000 characters; the text ends before the first that appears.
    stop_token_ids    tokens that end the answer, besides the model's own end tokens.
    include_stop_str_in_output   keep the stop string (or the stop token's text) in the text.
    ignore_eos        go on after the model's end tokens.
    logprobs          tell the log-probability of each token, and of so many of the likeliest beside it;
                      -1: of all (EngineConfig.max_logprobs is the most).
    prompt_logprobs   the same for the tokens of the prompt; the prefix cache is not read then.
    logprob_token_ids    tell those of these tokens too; up to 128.
    logit_bias        added to the logits of tokens, by their ids; clamped to [-100, 100].
    allowed_token_ids    no other tokens are drawn.
    bad_words         up to 128 words that do not come about: none that would complete one is drawn, as it is
                      tokenised alone or behind a space.
    skip_special_tokens          leave special tokens out of the text.
    spaces_between_special_tokens   False: special tokens that are shown directly behind each other have no
                      space between them (only WordPiece vocabularies have one).
    detokenize        False: only token ids, no text (then `stop` is not possible).
    truncate_prompt_tokens       take the last so many tokens of a longer prompt; -1: as many as leave room
                      for max_tokens.
    output_kind       what an output's text and tokens are.
    stream_interval   an output comes with the first token, then when there are so many new ones, and at the
                      end.
    structured_outputs           what the answer must be: one of `json` (a schema), `regex`, `choice`,
                      `grammar` (EBNF), `json_object`, `structural_tag`; see docs/structured.md.
    repetition_detection         when an answer goes round in circles.
    thinking_token_budget        tokens of reasoning at most (EngineConfig.reasoning_start_str and
                      reasoning_end_str are around it); -1: no limit.
    skip_reading_prefix_cache    compute the whole prompt; None: only for prompt_logprobs.
    extra_args        for the engine's custom logits processors: anything that is JSON.
    """

    n: int = 1
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    max_tokens: int | None = 16
    min_tokens: int = 0
    stop: str | Sequence[str] = ()
    stop_token_ids: Sequence[int] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: Sequence[int] = ()
    logit_bias: Mapping[int, float] | None = None
    allowed_token_ids: Sequence[int] | None = None
    bad_words: str | Sequence[str] = ()
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    detokenize: bool = True
    truncate_prompt_tokens: int | None = None
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    stream_interval: int = 1
    structured_outputs: Mapping[str, Any] | None = None
    repetition_detection: RepetitionDetection | Mapping[str, int] | None = None
    thinking_token_budget: int | None = None
    skip_reading_prefix_cache: bool | None = None
    extra_args: Mapping[str, Any] | None = None
    _spec: str | None = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Bring the fields to their final form, of plain types; raise InvalidRequest where one cannot be."""
        for name, value in chain(self._numbers(), self._collections()):
            object.__setattr__(self, name, value)
        if self.structured_outputs is not None:
            text = spec(self.structured_outputs)
            object.__setattr__(self, "_spec", text)
            object.__setattr__(self, "structured_outputs", json.loads(text))
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise InvalidRequest(f"{name} must be true or false", name)
        self._check_together()

    def _numbers(self) -> tuple[tuple[str, Any], ...]:
        return (
            ("n", check.integer(self.n, "n", 1, MAX_N)),
            ("temperature", check.number_or_none(self.temperature, "temperature", 0, 2)),
            ("top_p", check.number_or_none(self.top_p, "top_p", 0, 1, open_below=True)),
            ("min_p", check.number_or_none(self.min_p, "min_p", 0, 1)),
            ("top_k", check.integer_or_none(self.top_k, "top_k", -1)),
            ("max_tokens", check.integer_or_none(self.max_tokens, "max_tokens", 1)),
            ("min_tokens", check.integer(self.min_tokens, "min_tokens", 0)),
            ("seed", check.integer_or_none(self.seed, "seed", -(2**63), 2**63 - 1)),
            ("presence_penalty", check.number(self.presence_penalty, "presence_penalty", -2, 2)),
            ("frequency_penalty", check.number(self.frequency_penalty, "frequency_penalty", -2, 2)),
            (
                "repetition_penalty",
                check.number_or_none(self.repetition_penalty, "repetition_penalty", 0, 1e4, open_below=True),
            ),
            ("logprobs", check.integer_or_none(self.logprobs, "logprobs", -1)),
            ("prompt_logprobs", check.integer_or_none(self.prompt_logprobs, "prompt_logprobs", -1)),
            ("stream_interval", check.integer(self.stream_interval, "stream_interval", 1)),
            (
                "truncate_prompt_tokens",
                check.integer_or_none(self.truncate_prompt_tokens, "truncate_prompt_tokens", -1),
            ),
            (
                "thinking_token_budget",
                check.integer_or_none(self.thinking_token_budget, "thinking_token_budget", -1),
            ),
        )

    def _collections(self) -> tuple[tuple[str, Any], ...]:
        allowed = self.allowed_token_ids
        return (
            ("stop", check.texts(self.stop, "stop", MAX_STOP_STRINGS, MAX_STOP_LENGTH)),
            ("stop_token_ids", check.tokens(self.stop_token_ids, "stop_token_ids")),
            ("bad_words", check.texts(self.bad_words, "bad_words", MAX_BAD_WORDS, MAX_STOP_LENGTH)),
            (
                "logprob_token_ids",
                check.tokens(self.logprob_token_ids, "logprob_token_ids", MAX_LOGPROB_TOKENS),
            ),
            ("logit_bias", _bias(self.logit_bias)),
            ("allowed_token_ids", None if allowed is None else check.tokens(allowed, "allowed_token_ids")),
            ("repetition_detection", _detection(self.repetition_detection)),
            ("extra_args", _arguments(self.extra_args)),
        )

    def _check_together(self) -> None:
        """Raise InvalidRequest for what contradicts each other."""
        if self.temperature is not None:
            self._check_n(self.temperature)
        if self.stop and not self.detokenize:
            raise InvalidRequest("stop needs detokenize=True", "stop")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            text = f"min_tokens is {self.min_tokens}, more than max_tokens, which is {self.max_tokens}"
            raise InvalidRequest(text, "min_tokens")
        if self.allowed_token_ids is not None and not self.allowed_token_ids:
            raise InvalidRequest("allowed_token_ids is empty: then no token could come", "allowed_token_ids")
        if self.truncate_prompt_tokens == 0:
            text = "truncate_prompt_tokens must be at least 1, or -1, not 0: a prompt needs a token"
            raise InvalidRequest(text, "truncate_prompt_tokens")
        if not isinstance(self.output_kind, RequestOutputKind):
            text = f"output_kind must be a RequestOutputKind, not {self.output_kind!r}"
            raise InvalidRequest(text, "output_kind")
        if self.structured_outputs is not None and self.ignore_eos:
            text = "ignore_eos and structured_outputs exclude each other: a grammar ends with the answer"
            raise InvalidRequest(text, "ignore_eos")
        if not isinstance(self.skip_reading_prefix_cache, bool | None):
            text = "skip_reading_prefix_cache must be true, false or None"
            raise InvalidRequest(text, "skip_reading_prefix_cache")
        if self.skip_reading_prefix_cache is False and self.prompt_logprobs is not None:
            text = "prompt_logprobs needs the whole prompt computed: leave skip_reading_prefix_cache out"
            raise InvalidRequest(text, "skip_reading_prefix_cache")

    def _check_n(self, temperature: float) -> None:
        if self.n > 1 and temperature < GREEDY_BELOW:
            raise InvalidRequest(f"n must be 1 when sampling is greedy: all {self.n} would be equal", "n")

    def check_logprobs(self, most: int) -> None:
        """Raise InvalidRequest for more log-probabilities than the engine allows (-1: any number)."""
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None and most >= 0 and (value < 0 or value > most):
                asked = "the whole vocabulary" if value < 0 else value
                text = f"{name} asks for {asked}, but the engine's max_logprobs is {most}"
                raise InvalidRequest(text, name)

    def sampling(self, defaults: Sampling) -> Sampling:
        """The worker's part; what is None here comes from `defaults` (the model's).

        Raises InvalidRequest for several answers of a model that is greedy by default.
        """
        temperature = _first(self.temperature, defaults.temperature)
        self._check_n(temperature)
        budget = self.thinking_token_budget
        bias = dict(self.logit_bias or {})
        drawn = temperature >= GREEDY_BELOW
        return Sampling(
            temperature=float(temperature) if drawn else 0.0,
            top_k=max(0, int(_first(self.top_k, defaults.top_k))) if drawn else 0,
            top_p=float(_first(self.top_p, defaults.top_p)) if drawn else 1.0,
            min_p=float(_first(self.min_p, defaults.min_p)) if drawn else 0.0,
            seed=self.seed,
            presence_penalty=self.presence_penalty,
            frequency_penalty=self.frequency_penalty,
            repetition_penalty=float(_first(self.repetition_penalty, defaults.repetition_penalty)),
            min_tokens=self.min_tokens,
            bias_tokens=pack(bias),
            bias=pack_struct(f"<{len(bias)}f", *bias.values()),
            allowed=pack(self.allowed_token_ids or ()),
            thinking=None if budget is None or budget < 0 else Thinking(budget),
            logprobs=self.logprobs,
            logprob_tokens=pack(self.logprob_token_ids),
            prompt_logprobs=self.prompt_logprobs,
            arguments="" if self.extra_args is None else json.dumps(self.extra_args),
        )

    def limits(self) -> Limits:
        """The Scheduler's part."""
        rule = self.repetition_detection
        repetition = None
        if isinstance(rule, RepetitionDetection):
            repetition = Repetition(rule.max_pattern_size, rule.min_pattern_size, rule.min_count)
        return Limits(self.max_tokens, tuple(self.stop_token_ids), self.ignore_eos, self._spec, repetition)

    def text_rules(self) -> TextRules:
        """The Detokenizer's part."""
        return TextRules(
            tuple(self.stop),
            self.include_stop_str_in_output,
            self.skip_special_tokens,
            self.detokenize,
            self.min_tokens,
            self.spaces_between_special_tokens,
        )

    @property
    def skips_prefix_cache(self) -> bool:
        """Whether nothing is taken from the prefix cache."""
        return bool(self.skip_reading_prefix_cache) or self.prompt_logprobs is not None


_FLAGS = (
    "include_stop_str_in_output",
    "ignore_eos",
    "skip_special_tokens",
    "spaces_between_special_tokens",
    "detokenize",
)


def _first(given: float | None, default: float) -> float:
    return default if given is None else given


def _bias(value: Any) -> dict[int, float] | None:
    """Clamped; keys may be written as text, as they are in JSON, but each token only once."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidRequest("logit_bias must be an object of numbers by token id", "logit_bias")
    found: dict[int, float] = {}
    for key, bias in value.items():
        token = _biased(key)
        if token in found:
            raise InvalidRequest(f"logit_bias has token {token} twice", "logit_bias")
        found[token] = max(-MAX_BIAS, min(MAX_BIAS, check.number(bias, f"logit_bias.{token}", -1e9, 1e9)))
    return found


def _biased(key: Any) -> int:
    """The token of a key."""
    is_decimal = isinstance(key, str) and key.isascii() and key.isdigit() and len(key) <= 10
    token = int(key) if is_decimal and (key == "0" or key[0] != "0") else key
    if isinstance(token, bool) or not isinstance(token, int) or not 0 <= token < 2**31:
        raise InvalidRequest(f"logit_bias has the key {key!r:.40}, which is no token id", "logit_bias")
    return int(token)


def _detection(value: Any) -> RepetitionDetection | None:
    if value is None or isinstance(value, RepetitionDetection):
        return value
    known = RepetitionDetection.__dataclass_fields__
    if not isinstance(value, Mapping) or not value.keys() <= known.keys():
        text = f"repetition_detection must be an object with {', '.join(known)}"
        raise InvalidRequest(text, "repetition_detection")
    if "max_pattern_size" not in value:
        text = "repetition_detection needs max_pattern_size"
        raise InvalidRequest(text, "repetition_detection.max_pattern_size")
    return RepetitionDetection(**value)


def _arguments(value: Any) -> dict[str, Any] | None:
    """A copy as JSON makes one: what the workers get."""
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidRequest("extra_args must be an object", "extra_args")
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(value), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"extra_args must be JSON: {error}", "extra_args") from error
    return plain
