"""What clients may keep open, and how many files a process may have."""

import math
import os
from contextlib import suppress
from dataclasses import dataclass

from ..errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """What clients may keep open. Raises ConfigError for what cannot work.

    max_connections  connections that may be open: one more costs the one that has been idle for longest, or
                     is closed. None: as many as the process may have files
    header_timeout   seconds in which the headers of a request must have come, from the connection's begin or
                     the request's first byte; then the connection is closed
    idle_timeout     seconds for which a connection stays open between two requests: longer than clients and
                     load balancers keep theirs, or requests are lost
    """

    max_connections: int | None = None
    header_timeout: float = 30.0
    idle_timeout: float = 75.0

    def __post_init__(self) -> None:
        """Check the fields."""
        for name in ("header_timeout", "idle_timeout"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} must be finite and above 0 seconds, not {getattr(self, name):g}")
        if self.max_connections is not None and self.max_connections < 1:
            raise ConfigError(f"max_connections must be at least 1, not {self.max_connections}")


def raise_file_limit() -> int | None:
    """Let the process have as many open files as it may; how many, None where nobody counts them."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # some systems allow less than they say
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        soft = hard
    return None if soft == resource.RLIM_INFINITY else soft


def num_open_files() -> int:
    """How many files the process has open now; 0 where the system does not tell."""
    with suppress(OSError):
        return len(os.listdir("/dev/fd"))
    return 0
