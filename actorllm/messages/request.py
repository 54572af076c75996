"""What is said on the text side, and what crosses to the token side and back."""

from .base import message
from .cache import CacheKey
from .logprobs import Logprobs, PromptLogprobs


@message(1)
class Fault:
    """An error in a box, so that it can travel: `kind` is the name of a class in `actorllm.errors`.

    `origin` is the traceback from where it was raised.
    """

    kind: str
    message: str
    param: str | None = None
    retry_after: float | None = None
    origin: str = ""


@message(2)
class TextPrompt:
    """A prompt to tokenise. `add_special_tokens` puts the tokenizer's own first token before it."""

    text: str
    add_special_tokens: bool = True


@message(3)
class TokenPrompt:
    """A prompt that is tokens already (`tokens`: int32 column)."""

    tokens: bytes


@message(4)
class Conversation:
    """Chat messages for the chat template. `messages` is the JSON text of a list of objects.

    `variables` is the JSON text of an object, or empty: what else the template is to know. With
    `continue_final_message` the prompt ends with the last message's text.
    """

    messages: str
    add_generation_prompt: bool = True
    variables: str = ""
    continue_final_message: bool = False
    add_special_tokens: bool = False


@message(23)
class Thinking:
    """After `budget` tokens of reasoning behind `begin` (int32 columns), `end` is forced."""

    budget: int
    begin: bytes = b""
    end: bytes = b""


@message(5)
class Sampling:
    """How the worker draws the next token. A temperature of 0 is greedy; 0 for `top_k` is off.

    Of the first `min_tokens` tokens none is among `end_tokens` (int32 column). `bias` (float32 column) is
    added to the logits of `bias_tokens` (int32 column). `allowed` (int32 column), when it is not empty, has
    the only tokens that may be drawn; each of `bad_words` (int32 columns) is a sequence that may not come.
    `logprobs` is how many of the likeliest tokens are told with their log-probabilities besides the one drawn
    (-1: all; None: nothing is told), `logprob_tokens` (int32 column) are told too; `prompt_logprobs` is the
    same for the tokens of the prompt. `arguments` is the JSON text of an object for custom processors.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    min_tokens: int = 0
    end_tokens: bytes = b""
    bias_tokens: bytes = b""
    bias: bytes = b""
    allowed: bytes = b""
    bad_words: tuple[bytes, ...] = ()
    thinking: Thinking | None = None
    logprobs: int | None = None
    logprob_tokens: bytes = b""
    prompt_logprobs: int | None = None
    arguments: str = ""


@message(26)
class Repetition:
    """End an answer whose last tokens are one pattern, `min_count` times in a row.

    The pattern has `min_pattern_size` to `max_pattern_size` tokens.
    """

    max_pattern_size: int
    min_pattern_size: int
    min_count: int


@message(6)
class Limits:
    """When the Scheduler ends a request. `max_tokens` None is the rest of the context."""

    max_tokens: int | None = None
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    grammar: str | None = None
    repetition: Repetition | None = None


@message(22)
class Terms:
    """On whose behalf and how soon. A lower `priority` is served sooner.

    Seconds from the Submit, after which the request ends with `timeout`: `queue_timeout` unless it has
    begun to run, `ttft_timeout` unless it has a token, `timeout` in any case. In a Generate, what its caller
    has waited for a seat is taken off already.
    """

    priority: int = 0
    tenant: str = ""
    queue_timeout: float | None = None
    ttft_timeout: float | None = None
    timeout: float | None = None


@message(7)
class TextRules:
    """How the Detokenizer makes text of tokens, and which strings end it.

    Stop strings are looked for in the text behind the first `min_tokens` tokens.
    """

    stop: tuple[str, ...] = ()
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    detokenize: bool = True
    min_tokens: int = 0
    spaces_between_special_tokens: bool = True


@message(8)
class Question:
    """All that a caller wants to know; each part goes to the actor that needs it.

    `bad_words` are the texts from which the Renderer makes those of `sampling`. Of a longer prompt only the
    last `truncate` tokens are taken; -1: as many as leave room for the answer.
    """

    prompt: TextPrompt | TokenPrompt | Conversation
    sampling: Sampling
    limits: Limits
    text: TextRules
    terms: Terms = Terms()
    key: CacheKey | None = None
    bad_words: tuple[str, ...] = ()
    truncate: int | None = None


@message(9)
class Generate:
    """Caller to Frontend: answer this."""

    request: int
    question: Question


@message(10)
class Cancel:
    """Caller to Frontend: nobody wants the answer any more."""

    request: int


@message(11)
class Render:
    """Frontend to Renderer: make tokens of this prompt. The seed is set."""

    request: int
    question: Question


@message(12)
class Abort:
    """End this request. It travels the path of its request, so that it cannot overtake the Submit."""

    request: int


@message(13)
class Rendered:
    """Renderer to Frontend (and a render job's result): the prompt's tokens (int32 column).

    A job's result has besides what else it made tokens of (int32 columns): `bad_words`, and the markers
    around reasoning.
    """

    request: int
    tokens: bytes
    bad_words: tuple[bytes, ...] = ()
    think_begin: bytes = b""
    think_end: bytes = b""


@message(14)
class Failed:
    """Renderer to Frontend: this request ended before it was tracked."""

    request: int
    reason: str
    fault: Fault | None = None


@message(15)
class Track:
    """Renderer to Detokenizer: tokens of this request will come.

    `prompt_tail` is the prompt's last few tokens (int32 column): a character may have begun there.
    """

    request: int
    prompt_tail: bytes
    rules: TextRules


@message(16)
class Submit:
    """Renderer to Scheduler: generate. `limits.max_tokens` and `sampling.seed` are set."""

    request: int
    prompt: bytes
    sampling: Sampling
    limits: Limits
    terms: Terms = Terms()
    key: CacheKey | None = None


@message(17)
class Ending:
    """How a request ended. `finish_reason` is stop, length, repetition, abort, timeout or error."""

    request: int
    finish_reason: str
    stop_token: int | None = None
    fault: Fault | None = None


@message(18)
class Tokens:
    """Scheduler to Detokenizer: what the steps up to `step`, the last that sampled, brought.

    `requests` (int64 column) and `tokens` (int32 column) run in parallel; a request that got several
    tokens stands there several times, in order. An ending comes after its request's last token. `logprobs`
    are those of the tokens, None when nobody wants any. `hits` (int64 column) are those of the requests
    whose first token is here and of whose prompt `num_cached` tokens (int32 column) were in the cache.
    """

    step: int
    requests: bytes
    tokens: bytes
    endings: tuple[Ending, ...] = ()
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    hits: bytes = b""
    num_cached: bytes = b""


@message(19)
class Delta:
    """What is new for one request. `finish_reason` is set exactly once, in its last delta.

    `num_cached` tokens of its prompt were in the cache: told once, with its first token.
    """

    request: int
    text: str
    tokens: bytes
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    fault: Fault | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[Logprobs, ...] = ()
    num_cached: int = 0


@message(20)
class Text:
    """Detokenizer to Frontend: the deltas that `Tokens` up to `step` gave."""

    step: int
    deltas: tuple[Delta, ...]


@message(21)
class Seen:
    """Frontend to Scheduler: the text of all steps up to `step` has reached the callers' cells."""

    step: int
