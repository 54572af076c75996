"""The two ends of an inbox, and how one is opened: bounded anyio memory streams, used as they are."""

from typing import Generic, NamedTuple, Protocol, TypeVar, cast

import anyio
from anyio.streams.memory import MemoryObjectReceiveStream, MemoryObjectSendStream

from ..messages import Message
from .codec import decode, encode

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
T_contra = TypeVar("T_contra", contravariant=True)
M_contra = TypeVar("M_contra", bound=Message, contravariant=True)


class Inbox(Protocol[T_co]):
    """Where an actor gets its mail."""

    async def receive(self) -> T_co:
        """The oldest message; waits for one. Raises anyio.EndOfStream when all senders are gone."""

    def receive_nowait(self) -> T_co:
        """The oldest message. Raises anyio.WouldBlock when there is none."""


class Port(Protocol[T_contra]):
    """Where an actor puts mail for another."""

    def send_nowait(self, item: T_contra, /) -> None:
        """Put a message into the mailbox. It never waits."""


class Mailbox(NamedTuple, Generic[T]):
    """Both ends. Close each (or clone the port) as anyio's streams are closed and cloned."""

    port: MemoryObjectSendStream[T]
    inbox: MemoryObjectReceiveStream[T]


def open_mailbox(capacity: int) -> Mailbox[T]:
    """Open a mailbox that holds `capacity` messages (at least 1); annotate the result with their type.

    Sends never wait: a sender is then never cancelled halfway through saying what it decided, and no
    circle of full mailboxes can lock the ring. It works because every edge has a window (so many
    messages a request, or so many a step) and `capacity` is the sum of the windows of the edges that
    end here. So anyio.WouldBlock from `send_nowait` is never load: an actor has said more than its
    window, or the capacity is computed wrongly. Both are bugs, and the error must be let through.
    """
    if capacity < 1:
        raise ValueError(f"a mailbox must hold at least 1 message, not {capacity}")
    port, inbox = anyio.create_memory_object_stream[T](capacity)
    return Mailbox(port, inbox)


class Verified(Generic[M_contra]):
    """A port that sends each message through the codec, so that what arrives is what a wire would bring.

    Raises TypeError for a message that cannot travel; nothing is sent then.
    """

    def __init__(self, port: Port[M_contra]) -> None:
        self._port = port

    def send_nowait(self, item: M_contra, /) -> None:
        """Encode, decode and send on."""
        self._port.send_nowait(cast(M_contra, decode(encode(item))))
