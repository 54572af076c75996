"""Whatever a body of the Responses API says, it is answered, or the client is told what it did wrong."""

import json
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from actorllm.server.responses.items import Item
from actorllm.server.responses.request import RESPONSES as NEUTRAL
from actorllm.server.responses.request import ResponsesRequest

from .build import error, served
from .responses_joined import RESPONSES, checked

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

ITEMS: list[dict[str, Any]] = [
    {"role": "user", "content": "a"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "b"}]},
    {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "c"}]},
    {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": "d"},
    {"type": "item_reference", "id": "msg_1"},
]
WORDS = [
    "type",
    "text",
    "format",
    "schema",
    "name",
    "function",
    "effort",
    "auto",
    "json_object",
    "summary",
    "",
]
ANYTHING: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(WORDS),
    lambda some: st.lists(some, max_size=3) | st.dictionaries(st.sampled_from(WORDS), some, max_size=4),
    max_leaves=6,
)
FIELDS = [*ResponsesRequest.model_fields, *NEUTRAL]


@st.composite
def items(draw: st.DrawFn) -> list[Any]:
    """Some items, of which one may have something strange."""
    found = [dict(item) for item in draw(st.lists(st.sampled_from(ITEMS), min_size=1, max_size=5))]
    draw(st.sampled_from(found)).update(
        draw(st.dictionaries(st.sampled_from(list(Item.model_fields)), ANYTHING, max_size=1))
    )
    return found


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(items() | st.just("a"), st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=2))
@example("a", {"tools": [{"type": "function", "name": "f", "parameters": {"text": "\ud800"}}]})
@example("a", {"metadata": {"text": "\ud800"}})
@example([{"type": []}], {})
async def test_a_body_is_answered_or_refused(given_items: Any, fields: dict[str, Any]) -> None:
    body = {"input": given_items, "max_output_tokens": 2, **fields, "stream": False}
    async with served() as (_, client):
        response = await client.post(RESPONSES, content=json.dumps(body))
    if response.status_code == 200:
        checked(response.json())
    elif response.status_code != 504:
        assert error(response)["code"] in (400, 404)
