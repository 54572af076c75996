"""A web application of one's own with an OpenAI-compatible API under /llm, under uvicorn (asyncio).

python examples/mounted.py smollm2-135m 8000
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from fastapi import FastAPI

from actorllm import Engine
from actorllm.server.app import create_app

engine = Engine(sys.argv[1])


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with engine:
        yield


app = FastAPI(lifespan=lifespan)
app.mount("/llm", create_app(engine))


@app.get("/")
async def home() -> dict[str, str]:
    return {"model": engine.model_name, "api": "/llm/v1"}


if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[2]))
