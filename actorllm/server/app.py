"""The ASGI application."""

from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.routing import Match
from starlette.types import ASGIApp

from ..engine.engine import Engine
from ..errors import ActorLLMError
from .anthropic.routes import MessagesErrors
from .errors import BadBody, NoSuchMethod, NoSuchPath, error_response, unreadable, why_unreadable
from .guards.access import AccessLog, RequestIds
from .guards.body import BodyLimit
from .guards.drain import Drain, Drained
from .guards.guard import ApiKeys, Timeouts
from .guards.opened import must_have_been_open
from .guards.origins import allow_origins
from .guards.paths import route_path
from .guards.readiness import Readiness, health_routes
from .metrics import metrics_routes
from .openapi.document import complete
from .routes import open_router
from .settings import ServerSettings
from .token_routes import version_routes

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
"""What a route may be for."""


def create_app(
    engine: Engine,
    settings: ServerSettings | None = None,
    *,
    drain: Drain | None = None,
    readiness: Readiness | None = None,
) -> FastAPI:
    """An OpenAI-compatible application: serve it, mount it in another one, or call it in a test.

    The caller opens and closes the engine; until then, and afterwards, requests get 503, but for those that
    need none (/version, /health/live), and the last metrics are told to the end. With a `drain` of his own
    the caller can end admission sooner, and see the last request out; a `readiness` of his own he can feed
    between two questions for it.
    """
    settings, drain = settings or ServerSettings(), drain or Drain()
    app = App(settings, drain)
    app.state.settings = settings
    app.include_router(health_routes(engine, readiness or Readiness.of(settings), drain))
    app.include_router(metrics_routes(engine), dependencies=[Depends(must_have_been_open(engine))])
    app.include_router(version_routes())
    app.include_router(open_router(engine, settings))
    for kind in (HTTPException, RequestValidationError, ActorLLMError, RecursionError, Exception):
        app.add_exception_handler(kind, _answer_error)
    return app


class App(FastAPI):
    """FastAPI with the guards around all of it, even around its answer to an error that nobody expects.

    FastAPI brings the spans of OpenTelemetry; one is made for each request when a provider is configured.
    """

    def __init__(self, settings: ServerSettings, drain: Drain) -> None:
        """The exceptions that it would log can quote what clients sent, and are left out of its telemetry."""
        self._settings, self._drain = settings, drain
        super().__init__(
            title="actorllm",
            redirect_slashes=False,
            strict_content_type=False,
            telemetry={"logs": False, "operation_spans": False},
        )

    def openapi(self) -> dict[str, Any]:
        """The document at /openapi.json, made when it is first asked for."""
        is_new = self.openapi_schema is None
        document = super().openapi()
        if is_new:
            complete(document, self._settings)
        return document

    def build_middleware_stack(self) -> ASGIApp:
        """From the outermost: a request is named and logged, then checked, the cheapest check first."""
        settings = self._settings
        app: ASGIApp = BodyLimit(
            super().build_middleware_stack(), settings.max_body_bytes, settings.body_timeout
        )
        app = Timeouts(app, settings.request_timeout)
        app = Drained(app, self._drain)
        app = ApiKeys(app, settings.keys, guards_metrics=settings.metrics_need_key)
        app = allow_origins(app, settings.allowed_origins)
        return RequestIds(AccessLog(MessagesErrors(app)))


async def _answer_error(request: Request, error: Exception) -> Response:
    cause = why_unreadable(error)
    if cause is not None:
        error = BadBody(unreadable(cause, await request.body()))
    elif type(error) is HTTPException and error.status_code == 404:
        error = _no_such_path(request)
    elif type(error) is HTTPException and error.status_code == 405:
        error = NoSuchMethod(request.method, _methods(request))
    return error_response(error)


def _no_such_path(request: Request) -> NoSuchPath:
    """What the router says of a path that it does not know: most often `/v1` is missing, or there twice."""
    path, root = route_path(request.scope), request.scope.get("root_path", "")
    near = (f"/v1{path}", path.removeprefix("/v1"))
    return NoSuchPath(path, [other for other in near if _is_served(request, path=root + other)])


def _methods(request: Request) -> list[str]:
    """Those of all routes of a path; Starlette tells those of the first one."""
    return [method for method in METHODS if _is_served(request, method=method)]


def _is_served(request: Request, **changes: str) -> bool:
    """Whether there is a route for a request that is otherwise this one."""
    scope = {**request.scope, **changes}
    return any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes)
