"""What a core and the shell around it say to each other, and two processes at the start."""

from .base import message
from .request import Fault, Render, Rendered
from .step import RunStep, Sampled


@message(80)
class Job:
    """Core to shell: do this heavy work on a thread, and feed me the JobDone with this id."""

    id: int
    work: Render | RunStep


@message(81)
class JobDone:
    """Shell to core: the job is done; either `value` or `fault` is set."""

    id: int
    value: Rendered | Sampled | None = None
    fault: Fault | None = None


@message(90)
class Hello:
    """Peer to peer: the first message each way on a link. They part unless it is the same.

    `vocabulary` is a fingerprint of every message class, `num_fields` counts classes and fields: a
    vocabulary only grows, so the smaller one is older. This message itself never changes.
    """

    protocol: int
    vocabulary: bytes
    num_fields: int
