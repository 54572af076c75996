"""What the events of a streamed response say when they are put together, and that they are OpenAI's."""

import json
from copy import deepcopy
from typing import Any

import httpx
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

Json = dict[str, Any]

RESPONSES = "/v1/responses"

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
_TEXTS = {"response.output_text": "text", "response.reasoning_text": "text"}


def named_events(response: httpx.Response) -> list[Json]:
    """The events of a stream. Asserts that each is called by its type, and is one that OpenAI knows."""
    assert response.status_code == 200, response.text
    assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
    blocks = response.text.split("\n\n")
    assert blocks.pop() == ""
    found = []
    for block in blocks:
        name, data = block.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        found.append(event)
    check_events(found)
    return found


def check_events(events: list[Json]) -> None:
    """Assert that OpenAI's client reads each as what it is, and that they are numbered without a gap."""
    for event in events:
        assert _EVENT.validate_python(event).type == event["type"]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def checked(response: Json) -> Json:
    """The same. Asserts that OpenAI's client finds all that it expects, and understands each item."""
    read = Response.model_validate(response)
    assert [item.type for item in read.output] == [item["type"] for item in response["output"]]
    return response


def join(events: list[Json]) -> Json:
    """The response at the end of a whole stream. Asserts that its items are what the events before it say."""
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    begun = events[0]["response"]
    assert (begun["status"], begun["output"], begun["usage"]) == ("in_progress", [], None)
    assert events[1]["response"] == begun
    response: Json = events[-1]["response"]
    assert events[-1]["type"] == f"response.{response['status']}"
    told = {"status", "output", "usage", "completed_at", "incomplete_details"}
    assert {name: value for name, value in response.items() if name not in told} == {
        name: value for name, value in begun.items() if name not in told
    }
    assert response["output"] == join_items(events[2:-1])
    return checked(response)


def join_items(events: list[Json], *, all_end: bool = True) -> list[Json]:
    """The items that events say. Asserts that one ends before the next begins, and the last if `all_end`."""
    items: list[Json] = []
    ended = True
    for event in events:
        place = event["output_index"]
        if event["type"] == "response.output_item.added":
            assert ended
            assert place == len(items)
            assert event["item"]["status"] == "in_progress"
            items.append(deepcopy(event["item"]))
            ended = False
            continue
        assert (ended, place) == (False, len(items) - 1)
        if event["type"] == "response.output_item.done":
            assert event["item"] == items[place] | {"status": event["item"]["status"]}
            items[place] = event["item"]
            ended = True
        else:
            assert event["item_id"] == items[place]["id"]
            _add(items[place], event)
    assert ended or not all_end
    return items


def _add(item: Json, event: Json) -> None:
    what, _, step = event["type"].rpartition(".")
    if what == "response.content_part":
        if step == "added":
            item["content"].append(deepcopy(event["part"]))
        assert item["content"] == [event["part"]]
        assert event["content_index"] == 0
        return
    held = item["content"][event["content_index"]] if what in _TEXTS else item
    name = _TEXTS.get(what, "arguments")
    if step == "delta":
        held[name] += event["delta"]
        held.get("logprobs", []).extend(event.get("logprobs", []))
    else:
        assert event[name] == held[name]
        assert event.get("logprobs", []) == held.get("logprobs", [])


def bare(response: Json) -> Json:
    """A response without what is another each time: ids and moments."""
    items = [
        {**item, "id": "", **({"call_id": ""} if "call_id" in item else {})} for item in response["output"]
    ]
    moments = {"created_at": 0, "completed_at": response["completed_at"] is not None}
    return {**response, "id": "", **moments, "output": items}
