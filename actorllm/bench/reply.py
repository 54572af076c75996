"""HTTP/1.1 from the client's side, as far as a load needs it: bytes in, the body out.

A load generator shares its machine with the server. A general client takes 80 to 100 us of CPU a token of
a stream, most of it in layers that a load does not need; this and a socket take less than half of that.
"""

from ..errors import DecodeError

MAX_HEAD = 65_536
"""Bytes that the head of a reply may have."""


class Reply:
    """One reply. Feed it what the socket brings, until it is `done`.

    status      the HTTP status; 0 until the head is there
    done        the body is complete
    keeps_open  the connection can carry another request when it is done
    """

    def __init__(self) -> None:
        self.status = 0
        self.done = False
        self.keeps_open = False
        self._rest = b""
        self._is_chunked = False
        self._left: int | None = None

    @property
    def begun(self) -> bool:
        """Whether anything has come."""
        return self.status > 0 or bool(self._rest)

    def feed(self, data: bytes) -> bytes:
        """What these bytes bring of the body. Raises DecodeError for what is not HTTP/1.1."""
        self._rest += data
        while not self.status:
            head, found, rest = self._rest.partition(b"\r\n\r\n")
            if not found:
                if len(head) > MAX_HEAD or not b"HTTP/1.".startswith(head[:7]):
                    raise DecodeError(f"this is no HTTP/1.1: {head[:60]!r}")
                return b""
            self._rest = rest
            self._begin(head)
        return self._take_chunks() if self._is_chunked else self._take()

    def end(self) -> None:
        """The server has closed the connection. Raises DecodeError if it must not."""
        if not self.done and (not self.status or self._is_chunked or self._left is not None):
            raise DecodeError("the server closed the connection in the middle of its answer")
        self.done = True

    def _begin(self, head: bytes) -> None:
        first, *lines = head.decode("latin-1").split("\r\n")
        version, _, status = first.partition(" ")
        if not version.startswith("HTTP/1.") or not status[:3].isdecimal():
            raise DecodeError(f"this is no HTTP/1.1: {first[:60]!r}")
        if status.startswith("1"):
            return  # an interim answer; the real one follows
        pairs = (line.partition(":") for line in lines)
        headers = {name.strip().lower(): value.strip().lower() for name, _, value in pairs}
        self.status = int(status[:3])
        self._is_chunked = "chunked" in headers.get("transfer-encoding", "")
        length = headers.get("content-length")
        if length is not None and not self._is_chunked:
            if not length.isdecimal():
                raise DecodeError(f"content-length is {length[:60]!r}")
            self._left = int(length)
        is_framed = self._is_chunked or self._left is not None
        self.keeps_open = is_framed and version == "HTTP/1.1" and headers.get("connection") != "close"

    def _take(self) -> bytes:
        """A body of a known length, or one that ends with the connection."""
        if self._left is None:
            body, self._rest = self._rest, b""
            return body
        body, self._rest = self._rest[: self._left], self._rest[self._left :]
        self._left -= len(body)
        self.done = not self._left
        return body

    def _take_chunks(self) -> bytes:
        """All chunks that are there as a whole."""
        rest, at, body = self._rest, 0, []
        while not self.done and (end := rest.find(b"\r\n", at)) >= 0:
            size = _size(rest[at:end])
            if not size:
                last = rest.find(b"\r\n\r\n", end)  # trailers may stand between
                if last < 0:
                    break
                self.done, at = True, last + 4
            else:
                begin, past = end + 2, end + 2 + size
                if len(rest) < past + 2:
                    break
                body.append(rest[begin:past])
                at = past + 2
        self._rest = rest[at:]
        return b"".join(body)


def _size(line: bytes) -> int:
    """The size of a chunk, from the line before it."""
    digits = line.partition(b";")[0].strip()
    if not digits or digits.strip(b"0123456789abcdefABCDEF"):
        raise DecodeError(f"this is no size of a chunk: {line[:60]!r}")
    return int(digits, 16)
