"""The routes of OpenAI's Responses API."""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from ...engine.stream import Stream
from ...errors import InvalidRequest
from ..asking import Asking, json_response
from ..chat.reading import Reading
from ..chat.request import ChatRequest
from ..guards.paths import notes
from ..told import Json
from .answer import ResponsesAnswer
from .items import check_outputs, conversation
from .references import References
from .request import ResponsesRequest
from .store import Store


def open_responses_router(asking: Asking) -> APIRouter:
    """/v1/responses, with a store of its own."""
    routes = ResponsesRoutes(asking, Store(asking.settings.max_responses))
    router = APIRouter(redirect_slashes=False)
    one = "/v1/responses/{response_id}"
    router.add_api_route("/v1/responses", routes.create, methods=["POST"], response_model=None)
    router.add_api_route(one, routes.retrieve, methods=["GET"], response_model=None)
    router.add_api_route(one, routes.delete, methods=["DELETE"], response_model=None)
    router.add_api_route(f"{one}/cancel", routes.cancel, methods=["POST"], response_model=None)
    router.add_api_route(f"{one}/input_items", routes.items, methods=["GET"], response_model=None)
    return router


class ResponsesRoutes:
    """The functions behind the paths. A tenant knows of no response but its own."""

    def __init__(self, asking: Asking, store: Store) -> None:
        self._asking = asking
        self._store = store

    async def create(self, body: ResponsesRequest, request: Request) -> Response:
        """Answer items."""
        model = self._asking.served(body.model)
        tenant = _tenant(request)
        with body.named():
            items = self._given(body, tenant)
            chat, strict, stream, reading = await self._ask(body, conversation(items), request)
            with chat.named():
                keep = partial(self._store.keep, tenant, given=items) if body.store else _forget
                vocabulary = self._asking.engine.tokenizer
                base = {"model": model, **body.told(strict)}
                answer = ResponsesAnswer(body, chat, base, reading, vocabulary, keep)
                return await self._asking.respond(request, body.stream, [stream], answer)

    async def retrieve(self, response_id: str, request: Request) -> Response:
        """A stored response."""
        _check_query(request, {"stream": ("false",), "include_obfuscation": ("false",)})
        stored = self._store.find(_tenant(request), response_id)
        return Response(stored.response, media_type="application/json")

    async def delete(self, response_id: str, request: Request) -> Response:
        """Forget a stored response."""
        self._store.delete(_tenant(request), response_id)
        return json_response({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, response_id: str, request: Request) -> Response:
        """Only what runs in the background could be cancelled, and nothing does."""
        self._store.find(_tenant(request), response_id)
        text = (
            f"response {response_id!r} has ended, and cannot be cancelled: only responses in the background "
            "can be, and none is made here. To end a response that is being made, close its connection"
        )
        raise InvalidRequest(text, "response_id")

    async def items(
        self,
        response_id: str,
        request: Request,
        after: str | None = None,
        limit: Annotated[int, Query(ge=1, le=100)] = 20,
        order: Literal["asc", "desc"] = "desc",
    ) -> Response:
        """What a stored response answers, also of the responses before it; the last first, or in `order`."""
        _check_query(request, {"after": None, "limit": None, "order": None})
        found = self._store.find(_tenant(request), response_id).items()
        if order == "desc":
            found.reverse()
        if after is not None:
            found = found[_place(after, found) + 1 :]
        page = found[:limit]
        return json_response(
            {
                "object": "list",
                "data": page,
                "first_id": page[0]["id"] if page else None,
                "last_id": page[-1]["id"] if page else None,
                "has_more": len(found) > limit,
            }
        )

    def _given(self, body: ResponsesRequest, tenant: str) -> list[Json]:
        """All items to answer: those of the responses before this one, and those of the body."""
        earlier = (
            [] if body.previous_response_id is None else self._earlier(body.previous_response_id, tenant)
        )
        references = References(self._store, tenant, self._asking.settings.max_body_bytes)
        own = [
            item.told()
            if item.kind != "item_reference"
            else references.item(item.id or "", f"input.{place}.id")
            for place, item in enumerate(body.input)
        ]
        check_outputs(earlier, own)
        return [*earlier, *own]

    def _earlier(self, response_id: str, tenant: str) -> list[Json]:
        """A stored response with all that came before it."""
        turns = self._store.find(tenant, response_id, "previous_response_id").turns()
        for item in turns:
            if item["type"] == "function_call" and item["status"] == "incomplete":
                text = (
                    f"response {response_id!r} cannot be continued: the arguments of its call of "
                    f"{item['name']!r} are not the JSON text of an object, or were cut off; ask again, "
                    "with more max_output_tokens if it is incomplete, or send items"
                )
                raise InvalidRequest(text, "previous_response_id")
        return turns

    async def _ask(
        self, body: ResponsesRequest, messages: Sequence[Json], request: Request
    ) -> tuple[ChatRequest, bool, Stream, Reading]:
        """The conversation, whether tools that leave it open are strict, the answer and how it is read.

        They are unless the calls of this request cannot be enforced: its form of text, the model's way to
        call tools or a schema can stand against it.
        """
        if body.assumes_strict:
            try:
                return await self._ask_so(body, messages, request, strict=True)
            except InvalidRequest:
                pass  # if the cause is another one, it is raised again
        return await self._ask_so(body, messages, request, strict=False)

    async def _ask_so(
        self, body: ResponsesRequest, messages: Sequence[Json], request: Request, *, strict: bool
    ) -> tuple[ChatRequest, bool, Stream, Reading]:
        chat = body.chat(messages, strict)
        with chat.named():
            return chat, strict, *await self._asking.chat(chat, request)


def _tenant(request: Request) -> str:
    tenant: str = notes(request.scope).get("tenant", "")
    return tenant


def _forget(response: Json) -> None:
    """What is not to be stored."""


def _place(item_id: str, items: Sequence[Json]) -> int:
    for place, item in enumerate(items):
        if item["id"] == item_id:
            return place
    raise InvalidRequest(f"after: the response answers no item {item_id[:100]!r}", "after")


def _check_query(request: Request, known: dict[str, tuple[str, ...] | None]) -> None:
    """Raise InvalidRequest for a parameter that does nothing here; None: any value does something."""
    for name, value in request.query_params.multi_items():
        allowed = known.get(name, ())
        if allowed is not None and value not in allowed:
            text = f"the query parameter {name[:100]} is not supported here; leave it out"
            raise InvalidRequest(text, name)
