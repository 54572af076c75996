"""What a core and the shell around it say to each other."""

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
