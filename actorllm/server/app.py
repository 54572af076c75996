"""The ASGI application."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from ..engine.engine import Engine
from ..errors import ActorLLMError
from .errors import error_response
from .routes import open_router


def create_app(engine: Engine) -> FastAPI:
    """An OpenAI-compatible application: serve it, mount it in another one, or call it in a test.

    The caller opens and closes the engine; until then, and afterwards, requests get 503.
    """
    app = FastAPI(title="actorllm", redirect_slashes=False, strict_content_type=False)
    app.include_router(open_router(engine))
    for kind in (HTTPException, RequestValidationError, ActorLLMError, Exception):
        app.add_exception_handler(kind, _answer_error)
    return app


async def _answer_error(request: Request, error: Exception) -> Response:
    return error_response(error)
