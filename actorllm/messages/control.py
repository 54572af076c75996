"""What is said of the engine itself: jobs between a core and its shell, commands, and how a link begins."""

from .base import message
from .grammar import Compile, Compiled, Fill, Filled
from .request import Fault, Render, Rendered
from .step import RunCommand, RunStep, Sampled, SampleStep


@message(80)
class Job:
    """Core to shell: do this heavy work on a thread, and feed me the JobDone with this id."""

    id: int
    work: Render | Compile | Fill | RunStep | SampleStep | RunCommand


@message(81)
class JobDone:
    """Shell to core: the job is done, or failed with `fault`. Not every job has a `value`."""

    id: int
    value: Rendered | Compiled | Filled | Sampled | None = None
    fault: Fault | None = None


@message(82)
class Command:
    """Caller to Frontend to Scheduler: do this to the whole engine, as soon as no step is on its way.

    `action` is pause, resume, reset_prefix_cache, sleep, wake_up, start_profile or stop_profile.
    """

    id: int
    action: str
    argument: str = ""


@message(83)
class CommandDone:
    """Scheduler to Frontend to caller: the command with this id is done, or failed with `fault`."""

    id: int
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
