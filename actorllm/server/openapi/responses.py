"""What the routes of OpenAI's Responses API answer."""

from collections.abc import Mapping

from .chat import ANSWERED, ASKED
from .shapes import (
    COUNT,
    FLAG,
    NOTHING,
    NUMBER,
    OBJECT,
    TEXT,
    Json,
    Told,
    by_name,
    either,
    many,
    nullable,
    only,
    record,
    ref,
)

STATUS = only("in_progress", "completed", "incomplete")
EMPTY: Json = {"type": "array", "maxItems": 0}


def _item(kind: str, **own: Json) -> Json:
    return record({"id": TEXT, "type": only(kind), "status": STATUS, **own})


SAID = record(
    {
        "type": only("output_text"),
        "text": TEXT,
        "annotations": EMPTY,
        "logprobs": many(ref("Logprob")),
    }
)
THOUGHT = record({"type": only("reasoning_text"), "text": TEXT})
SUMMARY = record({"type": only("summary_text"), "text": TEXT})
CALL: Json = {"call_id": TEXT, "name": TEXT, "arguments": TEXT}
GIVEN: Json = either(
    record({"type": only("input_text"), "text": TEXT}),
    record({"type": only("output_text"), "text": TEXT, "annotations": EMPTY}, {"logprobs": EMPTY}),
)

FORM: Json = either(
    record({"type": only("text", "json_object")}),
    record(
        {
            "type": only("json_schema"),
            "name": TEXT,
            "description": nullable(TEXT),
            "strict": FLAG,
            "schema": OBJECT,
        }
    ),
)
TOOL = record(
    {
        "type": only("function"),
        "name": TEXT,
        "description": nullable(TEXT),
        "parameters": OBJECT,
        "strict": FLAG,
    }
)
USAGE = record(
    {
        "input_tokens": COUNT,
        "input_tokens_details": record({"cached_tokens": COUNT, "cache_write_tokens": COUNT}),
        "output_tokens": COUNT,
        "output_tokens_details": record({"reasoning_tokens": COUNT}),
        "total_tokens": COUNT,
    }
)
FAILURE = record({"code": TEXT, "message": TEXT, "type": TEXT, "param": nullable(TEXT)})

RESPONSE: Json = {
    "id": TEXT,
    "object": only("response"),
    "created_at": COUNT,
    "model": TEXT,
    "background": FLAG,
    "instructions": nullable(TEXT),
    "max_output_tokens": nullable(COUNT),
    "max_tool_calls": nullable(COUNT),
    "metadata": by_name(TEXT),
    "parallel_tool_calls": FLAG,
    "previous_response_id": nullable(TEXT),
    "prompt_cache_key": nullable(TEXT),
    "reasoning": record({"effort": nullable(TEXT), "summary": NOTHING}),
    "safety_identifier": nullable(TEXT),
    "service_tier": only("default"),
    "store": FLAG,
    "temperature": nullable(NUMBER),
    "text": record({"format": FORM, "verbosity": only("medium")}),
    "tool_choice": either(only("none", "auto", "required"), record({"type": only("function"), "name": TEXT})),
    "tools": many(TOOL),
    "top_logprobs": {"type": "integer", "minimum": -1},
    "top_p": nullable(NUMBER),
    "truncation": only("disabled"),
    "user": nullable(TEXT),
    "status": only("in_progress", "completed", "incomplete", "failed"),
    "completed_at": nullable(COUNT),
    "error": nullable(FAILURE),
    "incomplete_details": nullable(record({"reason": only("max_output_tokens")})),
    "output": many(ref("OutputItem")),
    "usage": nullable(USAGE),
}


def _event(kind: str, **own: Json) -> Json:
    return record({"type": only(f"response.{kind}"), "sequence_number": COUNT, **own})


def _on(**own: Json) -> dict[str, Json]:
    """Members of events that are about what an item says."""
    return {"output_index": COUNT, "item_id": TEXT, **own}


EVENTS = (
    *(
        _event(kind, response=ref("Response"))
        for kind in ("created", "in_progress", "completed", "incomplete", "failed")
    ),
    *(
        _event(f"output_item.{kind}", output_index=COUNT, item=ref("OutputItem"))
        for kind in ("added", "done")
    ),
    *(
        _event(f"content_part.{kind}", **_on(content_index=COUNT, part=either(SAID, THOUGHT)))
        for kind in ("added", "done")
    ),
    _event("output_text.delta", **_on(content_index=COUNT, delta=TEXT, logprobs=many(ref("Logprob")))),
    _event("output_text.done", **_on(content_index=COUNT, text=TEXT, logprobs=many(ref("Logprob")))),
    _event("reasoning_text.delta", **_on(content_index=COUNT, delta=TEXT)),
    _event("reasoning_text.done", **_on(content_index=COUNT, text=TEXT)),
    _event("function_call_arguments.delta", **_on(delta=TEXT)),
    _event("function_call_arguments.done", **_on(arguments=TEXT)),
)

SHAPES: Mapping[str, Json] = {
    "OutputItem": either(
        _item("message", role=only("assistant"), content=many(SAID)),
        _item("reasoning", content=many(THOUGHT), summary=EMPTY),
        _item("function_call", **CALL),
    ),
    "InputItem": either(
        _item("message", role=only("user", "assistant", "system", "developer"), content=many(GIVEN)),
        _item("reasoning", content=many(THOUGHT), summary=many(SUMMARY)),
        _item("function_call", **CALL),
        _item("function_call_output", call_id=TEXT, output=TEXT),
    ),
    "Response": record(RESPONSE),
    "ResponseEvent": either(*EVENTS),
    "DeletedResponse": record({"id": TEXT, "object": only("response"), "deleted": {"const": True}}),
    "InputItems": record(
        {
            "object": only("list"),
            "data": many(ref("InputItem")),
            "first_id": nullable(TEXT),
            "last_id": nullable(TEXT),
            "has_more": FLAG,
        }
    ),
}
"""The components."""

ONE = "/v1/responses/{response_id}"

OPERATIONS: Mapping[tuple[str, str], Told] = {
    ("/v1/responses", "post"): Told(ref("Response"), ANSWERED, ref("ResponseEvent")),
    (ONE, "get"): Told(ref("Response"), ASKED),
    (ONE, "delete"): Told(ref("DeletedResponse"), ASKED),
    (f"{ONE}/cancel", "post"): Told(None, ASKED),
    (f"{ONE}/input_items", "get"): Told(ref("InputItems"), ASKED),
}
"""What is answered, by path and method."""
