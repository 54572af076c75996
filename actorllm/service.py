"""On whose behalf a request runs, and how soon."""

from typing import TypedDict

from . import checks as check
from .errors import InvalidRequest
from .messages import CacheKey, Terms

MAX_NAME = 1000
"""Characters of a tenant or a cache salt."""

MAX_TIMEOUT = 10.0**9


class Service(TypedDict, total=False):
    """On whose behalf a request runs, and how soon.

    priority       with the policy `priority`, a lower one is served sooner (default 0)
    tenant         with the policy `fair`, tokens are shared between tenants (default "")
    queue_timeout  seconds after which it ends unless it has begun to run
    ttft_timeout   seconds after which it ends unless it has its first token
    timeout        seconds after which it ends; with the policy `deadline`, the sooner the earlier served
                   (all three run from the stream's first `await`, for each of its n answers and while it
                   waits for a place in the engine; only the time to render the prompt is not counted)
    cache_salt     it shares cached prefixes only with requests of the same salt, a text of up to 1000
                   characters (default "": with all that have none)
    """

    priority: int
    tenant: str
    queue_timeout: float | None
    ttft_timeout: float | None
    timeout: float | None
    cache_salt: str


def terms(service: Service) -> Terms:
    """The Scheduler's part of it. Raises InvalidRequest for what cannot be."""
    for name in service:
        if name not in Service.__annotations__:
            raise InvalidRequest(
                f"unknown argument {name!r}; known are {', '.join(Service.__annotations__)}", name
            )
    return Terms(
        check.integer(service.get("priority", 0), "priority", -(2**31)),
        check.name(service.get("tenant", ""), "tenant", MAX_NAME),
        check.number_or_none(service.get("queue_timeout"), "queue_timeout", 0, MAX_TIMEOUT),
        check.number_or_none(service.get("ttft_timeout"), "ttft_timeout", 0, MAX_TIMEOUT),
        check.number_or_none(service.get("timeout"), "timeout", 0, MAX_TIMEOUT),
    )


def cache_key(service: Service, *, skip_reading: bool = False) -> CacheKey | None:
    """The KVPool's part of it, None where there is nothing to say. Raises InvalidRequest."""
    salt = check.name(service.get("cache_salt", ""), "cache_salt", MAX_NAME)
    return CacheKey(salt, skip_reading=skip_reading) if salt or skip_reading else None
