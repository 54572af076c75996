"""An engine inside a handler of one's own, without an API in between: a client that goes ends its request.

python examples/handler.py smollm2-135m 8000
curl -N 'http://127.0.0.1:8000/story?of=a+lighthouse'
"""

import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import StreamingResponse
from starlette.routing import Route

from actorllm import Engine, SamplingParams

engine = Engine(sys.argv[1])


async def story(request: Request) -> StreamingResponse:
    asked = f"Tell a short story of {request.query_params.get('of', 'nothing')}."

    async def text() -> AsyncIterator[str]:
        async with engine.chat([{"role": "user", "content": asked}], SamplingParams(max_tokens=200)) as told:
            async for output in told:
                yield output.delta

    return StreamingResponse(text(), media_type="text/plain")


@asynccontextmanager
async def lifespan(app: Starlette) -> AsyncIterator[None]:
    async with engine:
        yield


app = Starlette(routes=[Route("/story", story)], lifespan=lifespan)

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[2]))
