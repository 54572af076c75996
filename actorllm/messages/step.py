"""What is said about a step: one pass of the model over some tokens of some requests."""

from .base import message
from .logprobs import Logprobs, PromptLogprobs
from .request import Fault, Sampling


@message(32)
class NewRow:
    """A request that the workers have not seen (or that was preempted): all they must know of it.

    `tokens` (int32 column) is prompt and output so far, the first `num_prompt` are the prompt; the KV of the
    first `num_computed` is there. The log-probabilities of the first `num_told` tokens were told already.
    """

    request: int
    tokens: bytes
    num_computed: int
    sampling: Sampling
    num_prompt: int = 0
    num_told: int = 0


@message(33)
class RunStep:
    """Scheduler to Executor to every Worker: run this step.

    The row columns run in parallel, one entry a row: `rows` (int64) request ids, `num_tokens` (int32)
    tokens to compute, `samples` (uint8) 1 where a token is to be sampled after the row's last token,
    `num_blocks` (int32) how many of `blocks` (int32) are appended to the row's block tables: as many for
    each group of layers, group after group. First of all the rows in `finished` (int64) leave the batch;
    then those in `new` join it. When `waits`, tokens are sampled only when the step's SampleStep has come.
    """

    step: int
    epoch: int
    new: tuple[NewRow, ...]
    rows: bytes
    num_tokens: bytes
    samples: bytes
    num_blocks: bytes
    blocks: bytes
    finished: bytes
    waits: bool = False


@message(40)
class SampleStep:
    """Grammar to Executor to every Worker: sample the tokens of a step that waits.

    Of each request in `requests` (int64 column) `masks` has a row of ceil(vocab_size / 32) words (int32,
    little-endian): token i may be drawn where bit i % 32 of word i // 32 is 1. It may come first.
    """

    step: int
    epoch: int
    requests: bytes
    masks: bytes


@message(39)
class RunCommand:
    """Scheduler to Executor to every Worker, in step order: no tokens, but something done to the device.

    `action` is sleep, wake_up, start_profile or stop_profile; `argument` is the profile's path.
    """

    step: int
    epoch: int
    action: str
    argument: str = ""


@message(34)
class Sampled:
    """A step job's result: a token for each sampling row, in row order (int32 column).

    `fault` is that of a RunCommand: it concerns no request, and the steps go on. `logprobs` are those of
    the tokens, None when no row wants any.
    """

    tokens: bytes
    fault: Fault | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()


@message(35)
class RankDone:
    """Worker to Executor: this rank has done the step. `tokens` is empty but from the output rank.

    `fault` is set when the step is a RunCommand that failed here.
    """

    rank: int
    step: int
    epoch: int
    tokens: bytes
    fault: Fault | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()


@message(36)
class RankFailed:
    """Worker to Executor: the step raised here. The worker drops all later steps of this epoch."""

    rank: int
    step: int
    epoch: int
    fault: Fault


@message(37)
class StepDone:
    """Executor to Scheduler: all ranks have done the step; a token for each sampling row, in order.

    `fault` is set when the step is a RunCommand that failed at a rank.
    """

    step: int
    epoch: int
    tokens: bytes
    fault: Fault | None = None
    logprobs: Logprobs | None = None
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()


@message(38)
class StepFailed:
    """Executor to Scheduler: the step raised; neither it nor a later one of its epoch is done."""

    step: int
    epoch: int
    fault: Fault
