"""What the routes of Anthropic's API answer."""

from collections.abc import Mapping

from .chat import ANSWERED, ASKED
from .shapes import COUNT, OBJECT, TEXT, Json, Told, either, many, nullable, only, record, ref

ENDINGS = only("end_turn", "max_tokens", "stop_sequence", "tool_use", "model_context_window_exceeded")
ENDED: Json = {"stop_reason": ENDINGS, "stop_sequence": nullable(TEXT)}
USAGE = record({"input_tokens": COUNT, "cache_read_input_tokens": COUNT, "output_tokens": COUNT})
BLOCKS: Json = either(
    record({"type": only("text"), "text": TEXT}),
    record({"type": only("thinking"), "thinking": TEXT, "signature": TEXT}),
    record({"type": only("tool_use"), "id": TEXT, "name": TEXT, "input": OBJECT}),
)
DELTAS: Json = either(
    record({"type": only("text_delta"), "text": TEXT}),
    record({"type": only("thinking_delta"), "thinking": TEXT}),
    record({"type": only("signature_delta"), "signature": TEXT}),
    record({"type": only("input_json_delta"), "partial_json": TEXT}),
)


def _message(ending: Json) -> Json:
    return record(
        {
            "id": TEXT,
            "type": only("message"),
            "role": only("assistant"),
            "model": TEXT,
            "content": many(ref("AnsweredBlock")),
            "usage": USAGE,
            **ending,
        }
    )


SHAPES: Mapping[str, Json] = {
    "MessagesError": record(
        {
            "type": only("error"),
            "error": record({"type": TEXT, "message": TEXT}, {"details": record({"error_code": TEXT})}),
        },
        {"request_id": TEXT},
    ),
    "AnsweredBlock": BLOCKS,
    "AnsweredMessage": _message(ENDED),
    "TokenCount": record({"input_tokens": COUNT}),
    "MessageEvent": either(
        record(
            {
                "type": only("message_start"),
                "message": _message({name: {"type": "null"} for name in ENDED}),
            }
        ),
        record({"type": only("content_block_start"), "index": COUNT, "content_block": ref("AnsweredBlock")}),
        record({"type": only("content_block_delta"), "index": COUNT, "delta": DELTAS}),
        record({"type": only("content_block_stop"), "index": COUNT}),
        record({"type": only("message_delta"), "delta": record(ENDED), "usage": USAGE}),
        record({"type": only("message_stop")}),
        ref("MessagesError"),
    ),
}
"""The components."""

OPERATIONS: Mapping[tuple[str, str], Told] = {
    ("/v1/messages", "post"): Told(
        ref("AnsweredMessage"), ANSWERED, ref("MessageEvent"), error="MessagesError"
    ),
    ("/v1/messages/count_tokens", "post"): Told(ref("TokenCount"), ASKED, error="MessagesError"),
}
"""What is answered, by path and method."""
