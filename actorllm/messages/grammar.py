"""What the Scheduler and Grammar say to each other."""

from .base import message
from .request import Fault


@message(64)
class Compile:
    """Scheduler to Grammar: get this grammar ready for this request."""

    request: int
    grammar: str


@message(65)
class GrammarReady:
    """Grammar to Scheduler: the request can run, or it fails with `fault`."""

    request: int
    fault: Fault | None = None


@message(66)
class Drop:
    """Scheduler to Grammar: this request has ended."""

    request: int
