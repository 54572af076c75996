"""Whether there is an engine to ask: an app may be there before its engine is open, and afterwards."""

from collections.abc import Awaitable, Callable

from ...engine.engine import Engine
from ...errors import EngineClosed, again
from ..errors import Unavailable

NOT_YET = "the engine is not open yet; ask again later"
CLOSED = "the engine is closed, for the server is shutting down; ask another one, or again later"


def why_closed(engine: Engine) -> Exception | None:
    """What a client is told when the engine takes no requests; None while it does."""
    match engine.closed:
        case None:
            return None
        case EngineClosed():
            return Unavailable(CLOSED if was_opened(engine) else NOT_YET)
        case died:
            return again(died)


def was_opened(engine: Engine) -> bool:
    """Whether the engine is open, or has been."""
    try:
        return engine.max_model_len > 0
    except EngineClosed:
        return False


def must_be_open(engine: Engine) -> Callable[[], Awaitable[None]]:
    """A dependency of routes: it raises `why_closed`."""

    async def check() -> None:
        closed = why_closed(engine)
        if closed is not None:
            raise closed

    return check


def must_have_been_open(engine: Engine) -> Callable[[], Awaitable[None]]:
    """A dependency of routes that answer to the end: it raises Unavailable until the engine is open."""

    async def check() -> None:
        if not was_opened(engine):
            raise Unavailable(NOT_YET)

    return check
