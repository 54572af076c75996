"""What the Scheduler and Grammar say to each other, and Grammar to its jobs."""

from .base import message
from .request import Fault
from .step import SampleStep


@message(64)
class Compile:
    """Scheduler to Grammar (and a job): get this grammar ready for this request.

    `grammar` is the canonical text of `structured.spec`.
    """

    request: int
    grammar: str


@message(65)
class GrammarReady:
    """Grammar to Scheduler: the request can run. With a `fault` it fails, now or in the middle."""

    request: int
    fault: Fault | None = None


@message(66)
class Drop:
    """Scheduler to Grammar: this request has ended, or is to end as soon as its Compile is answered."""

    request: int


@message(67)
class Advance:
    """Scheduler to Grammar: these tokens are final (columns, in order: int64 `requests`, int32 `tokens`)."""

    requests: bytes
    tokens: bytes


@message(68)
class MaskStep:
    """Scheduler to Grammar: say the SampleStep of this step, with a mask for each of `requests` (int64).

    All tokens before those that the step samples have been said by then.
    """

    step: int
    epoch: int
    requests: bytes


@message(69)
class Compiled:
    """A Compile job's result: the grammar is ready, and takes so many bytes."""

    size: int


@message(70)
class Fill:
    """A job: let matchers take tokens (columns, in order: int64 `requests`, int32 `tokens`), then fill the
    masks of `step`.
    """

    requests: bytes
    tokens: bytes
    step: MaskStep


@message(71)
class Filled:
    """A Fill job's result: the masks; and the requests (int64) whose matchers cannot go on, with reasons."""

    step: SampleStep
    requests: bytes = b""
    reasons: tuple[str, ...] = ()
