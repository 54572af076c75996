"""ServerSettings: what the HTTP server can be told."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """All settings of the server around an engine. Raises ConfigError for values that cannot work.

    api_keys               keys that requests must bring: `key` or `tenant=key`, also several for one
                           tenant, or a mapping from tenants to keys. Without any, everyone may ask
    metrics_need_key       whether /metrics needs a key too; /health never does
    allowed_origins        origins whose pages may ask from a browser (CORS), such as https://chat.example.com;
                           `*` is any
    max_body_bytes         bytes that the body of a request may have
    body_timeout           seconds in which the body of a request must have come
    request_timeout        seconds after which a request ends with an error; X-Request-Timeout may ask for
                           less. None: no limit
    unread_timeout         seconds for which a client may leave unread what has come; then its request fails
    keep_alive_interval    seconds without an event after which a stream sends a comment, so that proxies
                           between keep it open
    ignore_unknown_fields  whether unknown fields of a body are ignored; they are errors otherwise
    tool_parser            how calls of tools are read in answers: a parser's name, auto (by the model), none
    reasoning_parser       how reasoning is told from answers: a parser's name, auto (by the model), none
    max_responses          stored responses; the oldest of the tenant that has most make room
    max_step_seconds       seconds that a step of the model may take before the server is no longer ready
    max_stall_seconds      seconds for which requests may wait with no step on its way and nothing planned or
                           finished before the server is no longer ready
    grace                  seconds that admitted requests have after SIGTERM or SIGINT
    """

    api_keys: Mapping[str, str] | tuple[str, ...] | list[str] = field(default=(), repr=False)
    metrics_need_key: bool = False
    allowed_origins: tuple[str, ...] = ()
    max_body_bytes: int = 4 << 20
    body_timeout: float = 60.0
    request_timeout: float | None = None
    unread_timeout: float = 60.0
    keep_alive_interval: float = 15.0
    ignore_unknown_fields: bool = False
    tool_parser: str | None = "auto"
    reasoning_parser: str | None = "auto"
    max_responses: int = 1000
    max_step_seconds: float = 60.0
    max_stall_seconds: float = 60.0
    grace: float = 5.0

    def __post_init__(self) -> None:
        """Raise ConfigError for the first field that cannot work; a parser called `none` is None."""
        _ = self.keys
        for name in ("metrics_need_key", "ignore_unknown_fields"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"{name} must be true or false, not {getattr(self, name)!r}")
        for name in (
            "body_timeout",
            "unread_timeout",
            "keep_alive_interval",
            "max_step_seconds",
            "max_stall_seconds",
        ):
            _check_seconds(name, getattr(self, name))
        if self.request_timeout is not None:
            _check_seconds("request_timeout", self.request_timeout)
        _check_seconds("grace", self.grace, may_be_zero=True)
        _check_whole("max_body_bytes", self.max_body_bytes)
        _check_whole("max_responses", self.max_responses)
        for name in ("tool_parser", "reasoning_parser"):
            object.__setattr__(self, name, _parser(name, getattr(self, name)))
        object.__setattr__(self, "allowed_origins", _origins(self.allowed_origins))

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """Every key with its tenant, as (tenant, key); the tenant of a key alone is the empty text."""
        given = self.api_keys
        if isinstance(given, Mapping):
            return tuple(_checked(tenant, key) for tenant, key in given.items())
        if not isinstance(given, tuple | list):
            raise ConfigError(f"api_keys must be a mapping or a list, not a {type(given).__name__}")
        return tuple(_split(text) for text in given)


MAX_KEY = 1000
"""Characters of a key or a tenant."""


def _split(text: Any) -> tuple[str, str]:
    """Tenant and key of `tenant=key` or `key`."""
    if not isinstance(text, str):
        raise ConfigError(f"api_keys must be texts, not a {type(text).__name__}")
    tenant, separator, key = text.partition("=")
    if not separator:
        return _checked("", text)
    if not key.strip("="):  # what stands before it may be a key, and is not told
        raise ConfigError("api_keys: one has nothing behind its '='; write a key with a '=' in it as =key")
    return _checked(tenant, key)


def _checked(tenant: Any, key: Any) -> tuple[str, str]:
    """The pair, if requests can bring the key. The errors never tell it."""
    if not isinstance(tenant, str) or len(tenant) > MAX_KEY or not tenant.isprintable():
        raise ConfigError(f"a tenant of api_keys must be at most {MAX_KEY} printable characters")
    whose = f"the key of tenant {tenant!r}" if tenant else "a key"
    if not isinstance(key, str) or not key:
        raise ConfigError(f"api_keys: {whose} is empty")
    if len(key) > MAX_KEY or not all("!" <= character <= "~" for character in key):
        raise ConfigError(
            f"api_keys: {whose} must be at most {MAX_KEY} characters of printable ASCII without spaces"
        )
    return tenant, key


def _check_seconds(name: str, value: Any, may_be_zero: bool = False) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ConfigError(f"{name} must be a number of seconds, not {value!r}")
    if not math.isfinite(value) or value < 0 or not (value or may_be_zero):
        least = "at least 0" if may_be_zero else "above 0"
        raise ConfigError(f"{name} must be finite and {least} seconds, not {value!r}")


def _check_whole(name: str, value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"{name} must be an integer, not {value!r}")
    if value < 1:
        raise ConfigError(f"{name} must be at least 1, not {value}")


def _parser(name: str, value: Any) -> str | None:
    if value is not None and not (isinstance(value, str) and value):
        raise ConfigError(f"{name} must be a parser's name, auto or none, not {value!r}")
    return None if value == "none" else value


def _origins(value: Any) -> tuple[str, ...]:
    if not isinstance(value, tuple | list):
        raise ConfigError(f"allowed_origins must be a list of origins, not {value!r}")
    for origin in value:
        if not isinstance(origin, str) or (origin != "*" and not _is_origin(origin)):
            raise ConfigError(
                f"allowed_origins must be * or such as https://chat.example.com, no path; not {origin!r}"
            )
    return tuple(value)


def _is_origin(text: str) -> bool:
    """Whether a browser can send this text as the Origin of a page."""
    scheme, separator, host = text.partition("://")
    return bool(scheme and separator and host) and not set(host) & set("/?# ") and text == text.lower()
