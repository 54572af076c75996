"""What the routes of OpenAI's older API answer, and those around them: models, tokens, health, metrics."""

from collections.abc import Mapping

from .shapes import (
    COUNT,
    NOTHING,
    NUMBER,
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

ENDINGS = only("stop", "length", "repetition", "tool_calls")
ENDED: Json = {"finish_reason": ENDINGS, "stop_reason": nullable(either(TEXT, COUNT))}
GOES_ON: Json = {**ENDED, "finish_reason": nullable(ENDINGS)}
IDS: Json = {"token_ids": many(COUNT)}
PROMPT_IDS: Json = {"prompt_token_ids": many(COUNT)}
PROMPT_LOGPROBS: Json = {"prompt_logprobs": many(nullable(by_name(ref("PromptLogprob"))))}

TOKEN: Json = {
    "token": TEXT,
    "logprob": NUMBER,
    "bytes": many({"type": "integer", "minimum": 0, "maximum": 255}),
}
FUNCTION = record({"name": TEXT, "arguments": TEXT})
THOUGHTS: Json = {"reasoning": TEXT, "reasoning_content": TEXT}


def _answer(kind: str, choice: str) -> Json:
    """What all answers begin with."""
    return {
        "id": TEXT,
        "object": only(kind),
        "created": COUNT,
        "model": TEXT,
        "choices": many(ref(choice)),
    }


def _completion(ending: Json) -> Json:
    return record(
        {"index": COUNT, "text": TEXT, "logprobs": nullable(ref("CompletionLogprobs")), **ending},
        {**IDS, **PROMPT_IDS, **PROMPT_LOGPROBS},
    )


SHAPES: Mapping[str, Json] = {
    "Usage": record(
        {"prompt_tokens": COUNT, "completion_tokens": COUNT, "total_tokens": COUNT},
        {
            "prompt_tokens_details": record({"cached_tokens": COUNT}),
            "completion_tokens_details": record({"reasoning_tokens": COUNT}),
        },
    ),
    "PromptLogprob": record({"logprob": NUMBER, "rank": COUNT, "decoded_token": TEXT}),
    "Logprob": record({**TOKEN, "top_logprobs": many(record(TOKEN))}),
    "ChatLogprobs": record({"content": many(ref("Logprob")), "refusal": NOTHING}),
    "ChatCall": record({"id": TEXT, "type": only("function"), "function": FUNCTION}),
    "ChatMessage": record(
        {"role": only("assistant"), "content": nullable(TEXT)},
        {**THOUGHTS, "tool_calls": many(ref("ChatCall"))},
    ),
    "ChatChoice": record(
        {
            "index": COUNT,
            "message": ref("ChatMessage"),
            "logprobs": nullable(ref("ChatLogprobs")),
            **ENDED,
        },
        IDS,
    ),
    "ChatCompletion": record(
        {**_answer("chat.completion", "ChatChoice"), "usage": ref("Usage")}, {**PROMPT_LOGPROBS, **PROMPT_IDS}
    ),
    "ChatCallDelta": record(
        {"index": COUNT, "function": record({"arguments": TEXT}, {"name": TEXT})},
        {"id": TEXT, "type": only("function")},
    ),
    "ChatDelta": record(
        {},
        {"role": only("assistant"), "content": TEXT, **THOUGHTS, "tool_calls": many(ref("ChatCallDelta"))},
    ),
    "ChatChunkChoice": record(
        {"index": COUNT, "delta": ref("ChatDelta"), "logprobs": nullable(ref("ChatLogprobs")), **GOES_ON},
        IDS,
    ),
    "ChatCompletionChunk": record(
        _answer("chat.completion.chunk", "ChatChunkChoice"), {"usage": ref("Usage"), **PROMPT_IDS}
    ),
    "CompletionLogprobs": record(
        {
            "text_offset": many(COUNT),
            "token_logprobs": many(nullable(NUMBER)),
            "tokens": many(TEXT),
            "top_logprobs": many(nullable(by_name(NUMBER))),
        }
    ),
    "CompletionChoice": _completion(ENDED),
    "Completion": record({**_answer("text_completion", "CompletionChoice"), "usage": ref("Usage")}),
    "CompletionChunkChoice": _completion(GOES_ON),
    "CompletionChunk": record(_answer("text_completion", "CompletionChunkChoice"), {"usage": ref("Usage")}),
    "Model": record(
        {
            "id": TEXT,
            "object": only("model"),
            "created": COUNT,
            "owned_by": TEXT,
            "root": TEXT,
            "parent": NOTHING,
            "max_model_len": COUNT,
        }
    ),
    "Models": record({"object": only("list"), "data": many(ref("Model"))}),
    "Tokens": record(
        {
            "count": COUNT,
            "max_model_len": COUNT,
            "tokens": many(COUNT),
            "token_strs": nullable(many(TEXT)),
        }
    ),
    "Detokenized": record({"prompt": TEXT}),
    "Version": record({"version": TEXT}),
    "Live": record({"status": only("ok")}),
    "Ready": record(
        {
            "status": only("ok"),
            "model": TEXT,
            "step_seconds": NUMBER,
            "stall_seconds": NUMBER,
            "num_running": COUNT,
            "num_waiting": COUNT,
        }
    ),
}
"""The components."""

UNGUARDED = (400, 408, 413, 500, 503)
ANY = (*UNGUARDED, 401)
ASKED = (*ANY, 403, 404)
ANSWERED = (*ASKED, 429, 499, 504)
"""The statuses of errors, by what an operation does: with a model's name, and with the model."""

DONE = "[DONE]"

OPERATIONS: Mapping[tuple[str, str], Told] = {
    ("/health", "get"): Told(ref("Ready"), UNGUARDED),
    ("/health/ready", "get"): Told(ref("Ready"), UNGUARDED),
    ("/health/live", "get"): Told(ref("Live"), UNGUARDED),
    ("/metrics", "get"): Told(("text/plain", "application/openmetrics-text"), ANY),
    ("/version", "get"): Told(ref("Version"), ANY),
    ("/tokenize", "post"): Told(ref("Tokens"), ASKED),
    ("/detokenize", "post"): Told(ref("Detokenized"), ASKED),
    ("/v1/models", "get"): Told(ref("Models"), ANY),
    ("/v1/models/{model}", "get"): Told(ref("Model"), ASKED),
    ("/v1/chat/completions", "post"): Told(
        ref("ChatCompletion"), ANSWERED, either(ref("ChatCompletionChunk"), ref("Error")), done=DONE
    ),
    ("/v1/completions", "post"): Told(
        ref("Completion"), ANSWERED, either(ref("CompletionChunk"), ref("Error")), done=DONE
    ),
}
"""What is answered, by path and method."""
