"""The same under hypercorn and trio; the server is a child of the engine's block.

python examples/mounted_trio.py smollm2-135m 8000
"""

import signal
import sys
from typing import Any

import trio
from hypercorn.config import Config
from hypercorn.trio import serve
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Mount, Route

from actorllm import Engine
from actorllm.server.app import create_app


async def stopped() -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        await anext(signals)


async def main(model: str, port: str) -> None:
    async with Engine(model) as engine:

        async def home(request: Request) -> JSONResponse:
            return JSONResponse({"model": engine.model_name, "api": "/llm/v1"})

        config = Config()
        config.bind = [f"127.0.0.1:{port}"]
        app: Any = Starlette(routes=[Route("/", home), Mount("/llm", create_app(engine))])
        await serve(app, config, shutdown_trigger=stopped)


if __name__ == "__main__":
    trio.run(main, sys.argv[1], sys.argv[2])
