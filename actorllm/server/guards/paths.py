"""What a request is for, wherever the app is mounted, and what is noted of it on its way."""

from typing import Any

from starlette.types import Scope

OWN = "actorllm"
"""The one key of `request.state` that is written: a host may have others."""


def route_path(scope: Scope) -> str:
    """The path below the place where the app is mounted, as its router reads it."""
    path: str = scope["path"]
    root: str = scope.get("root_path", "")
    rest = path.removeprefix(root)
    return rest if path.startswith(root) and rest[:1] in ("", "/") else path


def is_health(scope: Scope) -> bool:
    """Whether it asks how the server is."""
    path = route_path(scope)
    return path == "/health" or path.startswith("/health/")


def is_metrics(scope: Scope) -> bool:
    """Whether it reads the metrics."""
    return route_path(scope) == "/metrics"


def notes(scope: Scope) -> dict[str, Any]:
    """What is known of the request besides what it says. The rest of `request.state` is the host's."""
    found: dict[str, Any] = scope.setdefault("state", {}).setdefault(OWN, {})
    return found


def begin_notes(scope: Scope) -> None:
    """From here on nothing is known of the request."""
    scope.setdefault("state", {})[OWN] = {}
