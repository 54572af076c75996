"""Messages in a stream of bytes: each is 4 bytes of length (big-endian) and then the body. Sans-IO."""

from ..errors import DecodeError
from .codec import MAX_BYTES

_HEADER = 4


def frame(body: bytes) -> bytes:
    """The body with its length before it. Raises ValueError when it is longer than `MAX_BYTES`."""
    if len(body) > MAX_BYTES:
        raise ValueError(f"a frame of {len(body)} bytes; at most {MAX_BYTES} can be sent")
    return len(body).to_bytes(_HEADER, "big") + body


class FrameReader:
    """Feed it what the socket brings; poll it for bodies until it gives None; close it at the end.

    A body longer than `max_bytes` is refused when its header is seen, before room is made for it.
    """

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        """Absorb bytes, cut anywhere."""
        self._buffer += data

    def poll(self) -> bytes | None:
        """The next whole body, or None until more is fed. Raises DecodeError when it is too long."""
        buffer = self._buffer
        if len(buffer) < _HEADER:
            return None
        size = int.from_bytes(buffer[:_HEADER], "big")
        if size > self._max_bytes:
            raise DecodeError(f"a frame of {size} bytes; at most {self._max_bytes} allowed")
        end = _HEADER + size
        if len(buffer) < end:
            return None
        with memoryview(buffer) as view:
            body = bytes(view[_HEADER:end])
        del buffer[:end]  # moves the bytearray's start, not its bytes
        return body

    def close(self) -> None:
        """The stream has ended. Raises DecodeError when bytes are left that are no whole frame."""
        if self._buffer:
            raise DecodeError(f"the stream ended within a frame, {len(self._buffer)} bytes into it")
