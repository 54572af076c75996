"""Where a server listens: a port or a Unix socket, plain or with TLS."""

import errno
import os
import socket
import ssl
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from ..errors import MachineError, UsageError

BACKLOG = 2048
"""Connections that wait to be let in, and that are let in in one turn of the event loop, at most."""


def listen(host: str, port: int) -> socket.socket:
    """A socket that is bound and does not listen yet. Raises MachineError when the address is not free."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
        except OSError:
            listener.close()
            raise
    except (OSError, UnicodeError) as error:  # a label of over 63 characters is no OSError
        reason = getattr(error, "strerror", None) or error
        raise MachineError(f"cannot listen at {host}:{port}: {reason}") from error
    return listener


def give_up_unread(listener: socket.socket, seconds: float) -> None:
    """Let the kernel drop a connection whose peer takes nothing of what was sent, for so long.

    A server that closes one leaves to the kernel what its peer has not read, and that waits as long as the
    peer is there. Where there is no such option (it is Linux's, for TCP) nothing happens.
    """
    if listener.family != socket.AF_UNIX and hasattr(socket, "TCP_USER_TIMEOUT"):
        milliseconds = min(int(seconds * 1000) + 1, 2**31 - 1)
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)


@contextmanager
def listen_unix(path: str) -> Iterator[socket.socket]:
    """A Unix socket that listens at the path, and is removed again with the block; another one is not.

    A socket that a dead server has left there is replaced. Raises MachineError when the path is not free.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        try:
            if _is_stale(path):
                os.unlink(path)
            listener.bind(path)
            listener.listen(BACKLOG)  # at once: where nobody listens, another server takes the path
            bound = os.stat(path)
        except OSError as error:
            text = "too long a path" if error.errno is None else error.strerror
            if error.errno == errno.EADDRINUSE and not _is_socket(path):
                text = "a file that is no socket is there"
            raise MachineError(f"cannot listen at {path}: {text}") from error
        try:
            yield listener
        finally:
            with suppress(FileNotFoundError):
                if os.path.samestat(bound, os.stat(path)):
                    os.unlink(path)


def _is_stale(path: str) -> bool:
    """Whether there is a socket at which nobody listens."""
    if not _is_socket(path):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)  # who listens and has too many waiting is alive, too
        return probe.connect_ex(path) == errno.ECONNREFUSED


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def address_of(listener: socket.socket, *, has_tls: bool) -> str:
    """The base URL at which clients reach the API."""
    name = listener.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host, port = name[:2]
    scheme = "https" if has_tls else "http"
    return f"{scheme}://[{host}]:{port}/v1" if ":" in host else f"{scheme}://{host}:{port}/v1"


@dataclass(frozen=True, slots=True)
class Tls:
    """A certificate (PEM, with its chain), and its key unless the same file has it.

    Raises MachineError when they cannot be read or do not belong together.
    """

    certfile: str
    keyfile: str | None = None

    def __post_init__(self) -> None:
        """Read them once, so that a mistake is told before the model is loaded."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.certfile, self.keyfile, password="")
        except (OSError, ValueError) as error:
            files = self.certfile if self.keyfile is None else f"{self.certfile} and {self.keyfile}"
            reason = error.strerror if isinstance(error, OSError) and error.strerror else error
            text = f"cannot serve TLS with {files}: {reason}; it takes a certificate and its unencrypted key"
            raise MachineError(text) from error

    @classmethod
    def of(cls, certfile: str | None, keyfile: str | None) -> "Tls | None":
        """What the two options say. Raises UsageError for a key alone."""
        if certfile is None and keyfile is not None:
            raise UsageError("--ssl-keyfile needs --ssl-certfile")
        return None if certfile is None else cls(certfile, keyfile)
