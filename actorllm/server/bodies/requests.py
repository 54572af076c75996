"""What the bodies of requests have in common. Names and defaults are vLLM's where OpenAI has none."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field

from ...errors import InvalidRequest
from ...params import RequestOutputKind, SamplingParams
from ...service import Service
from ..told import Teller
from .fields import Body
from .forms import ResponseFormat, StreamOptions, Texts

TokenIds = Annotated[list[int], Field(fail_fast=True, max_length=1_000_000)]
"""Token ids. The first one that is wrong is told, and no other."""

MAX_BIASED = 10_000
"""Tokens with a bias of their own."""


def _not_many(biased: Any) -> Any:
    if isinstance(biased, dict) and len(biased) > MAX_BIASED:
        raise InvalidRequest(f"must be for at most {MAX_BIASED} tokens, not {len(biased)}")
    return biased


Bias = Annotated[dict[str, float], BeforeValidator(_not_many)]
"""What is added to the logits of tokens, by their ids."""

RequestName = Annotated[str, Field(pattern=r"^[\x21-\x7e]{1,128}$")]
"""What a client calls its request: up to 128 printable characters of ASCII."""


@contextmanager
def renaming(blame: Callable[[str], str]) -> Iterator[None]:
    """A block in which errors name the fields as `blame` calls them."""
    try:
        yield
    except InvalidRequest as error:
        param = blame(error.param or "")
        if param == (error.param or ""):
            raise
        text = str(error)
        if text.startswith(str(error.param)):
            text = param + text.removeprefix(str(error.param))
        raise InvalidRequest(text, param) from error


class AnyRequest(Body):
    """What the routes have in common. The last five fields describe the caller and do nothing."""

    model: str | None = None
    n: int = 1
    best_of: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float | None = None
    logit_bias: Bias | None = None
    allowed_token_ids: TokenIds | None = None
    bad_words: Texts = Field([])
    stop: Texts = Field([])
    stop_token_ids: TokenIds = Field([])
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    detokenize: bool = True
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: TokenIds = Field([])
    structured_outputs: dict[str, Any] | None = None
    response_format: ResponseFormat | None = None
    repetition_detection: dict[str, Any] | None = None
    thinking_token_budget: int | None = None
    vllm_xargs: dict[str, Any] | None = None
    priority: int = 0
    cache_salt: str = ""
    timeout: float | None = None
    queue_timeout: float | None = None
    ttft_timeout: float | None = None
    request_id: RequestName | None = None
    stream: bool = False
    stream_interval: int = 1
    stream_options: StreamOptions | None = None
    return_token_ids: bool = False
    return_tokens_as_token_ids: bool = False
    user: Any = None
    metadata: Any = None
    store: Any = None
    safety_identifier: Any = None
    prompt_cache_key: Any = None

    _renamed: ClassVar[dict[str, str]] = {"extra_args": "vllm_xargs"}

    @property
    def include_usage(self) -> bool:
        """Whether a stream tells the usage at its end."""
        return self.stream_options is not None and self.stream_options.include_usage

    @property
    def always_usage(self) -> bool:
        """Whether every chunk of it does."""
        options = self.stream_options
        return options is not None and options.include_usage and options.continuous_usage_stats

    @property
    def num_logprobs(self) -> int | None:
        """How many log-probabilities besides its own are told of each token; None: nothing is told."""
        raise NotImplementedError

    def teller(self) -> Teller | None:
        """What writes them down; None when nothing is told."""
        most = self.num_logprobs
        if most is None:
            return None
        return Teller(most, bool(self.logprob_token_ids), self.return_tokens_as_token_ids)

    def service(self, tenant: str = "", most: float | None = None) -> Service:
        """For whom and how soon it is served, and with whom it shares cached prefixes.

        `most` is what else bounds its seconds.
        """
        bounds = [bound for bound in (self.timeout, most) if bound is not None]
        return Service(
            priority=self.priority,
            tenant=tenant,
            queue_timeout=self.queue_timeout,
            ttft_timeout=self.ttft_timeout,
            timeout=min(bounds, default=None),
            cache_salt=self.cache_salt,
        )

    def params(self, **changes: Any) -> SamplingParams:
        """How the answers are sampled, but for `changes`. Raises InvalidRequest."""
        self._check_together()
        given = {name: getattr(self, name) for name in self.model_fields_set if name in _SAMPLING}
        kind = RequestOutputKind.DELTA if self.stream else RequestOutputKind.FINAL_ONLY
        return SamplingParams(
            **given
            | self._changes()
            | {
                "logprobs": self.num_logprobs,
                "structured_outputs": self.form(),
                "extra_args": self.vllm_xargs,
                "output_kind": kind,
            }
            | changes
        )

    def named(self) -> AbstractContextManager[None]:
        """A block in which errors name the fields of this body."""
        return renaming(self._blame)

    def _changes(self) -> dict[str, Any]:
        """What SamplingParams are told otherwise than it is written here."""
        raise NotImplementedError

    def _check_together(self) -> None:
        if self.stream_options is not None and not self.stream:
            raise InvalidRequest("stream_options needs stream: true", "stream_options")
        if self.stream_interval > 1 and not self.stream:
            raise InvalidRequest("stream_interval needs stream: true", "stream_interval")
        if self.best_of is not None and self.best_of != self.n:
            raise InvalidRequest(f"best_of can only be n, which is {self.n}; leave it out", "best_of")
        if self.stream and self.prompt_logprobs is not None:
            raise InvalidRequest("prompt_logprobs is not possible with stream: true", "prompt_logprobs")
        if self.logprob_token_ids and self.num_logprobs is None:
            raise InvalidRequest("logprob_token_ids needs logprobs", "logprob_token_ids")

    def form(self) -> dict[str, Any] | None:
        """The form that the answers must have, in the names of SamplingParams; None: any."""
        form = None if self.response_format is None else self.response_format.structured_outputs()
        if form is None:
            return self.structured_outputs
        if self.structured_outputs is not None:
            text = "response_format and structured_outputs exclude each other"
            raise InvalidRequest(text, "response_format")
        return form

    def _blame(self, param: str) -> str:
        """What a field of SamplingParams is called here."""
        if param.split(".")[0] == "structured_outputs" and self.response_format is not None:
            return self.response_format.blame(param)
        return self._renamed.get(param, param)


_SAMPLING = SamplingParams.__dataclass_fields__.keys()
