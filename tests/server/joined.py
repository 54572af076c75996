"""What the events of a stream say when they are put together: the choices as they are without a stream."""

from typing import Any

Choice = dict[str, Any]


def join_chat(events: list[Any]) -> list[Choice]:
    """The choices of a conversation's answer. Asserts that each begins with its role and ends once."""
    choices: dict[int, Choice] = {}
    for event in events:
        for part in event["choices"]:
            delta, index = part["delta"], part["index"]
            if index not in choices:
                assert delta == {"role": "assistant", "content": ""}
                choices[index] = {"index": index, "message": dict(delta)}
            else:
                assert "role" not in delta
                _say(choices[index]["message"], delta)
            _add(choices[index], part, ("content",))
    for choice in choices.values():
        message = choice["message"]
        if not message["content"] and message.keys() - {"role", "content"}:
            message["content"] = None
    return [choices[index] for index in sorted(choices)]


def _say(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for name in delta.keys() - {"tool_calls"}:
        message[name] = message.get(name, "") + delta[name]
    for call in delta.get("tool_calls", []):
        calls = message.setdefault("tool_calls", [])
        if call["index"] == len(calls):
            calls.append({name: value for name, value in call.items() if name != "index"})
        else:
            assert call.keys() == {"index", "function"}
            assert call["index"] == len(calls) - 1, "a call goes on that another one followed"
            calls[-1]["function"]["arguments"] += call["function"]["arguments"]


def join_completion(events: list[Any]) -> list[Choice]:
    """The choices of completions. Asserts that each ends once."""
    choices: dict[int, Choice] = {}
    for event in events:
        for part in event["choices"]:
            choice = choices.setdefault(part["index"], {"index": part["index"], "text": ""})
            choice["text"] += part["text"]
            if "prompt_token_ids" in part:
                assert "prompt_token_ids" not in choice
                choice["prompt_token_ids"] = part["prompt_token_ids"]
            _add(choice, part, ("text_offset", "token_logprobs", "tokens", "top_logprobs"))
    return [choices[index] for index in sorted(choices)]


def _add(choice: Choice, part: Choice, columns: tuple[str, ...]) -> None:
    assert choice.get("finish_reason") is None, "something comes after the end"
    choice |= {"finish_reason": part["finish_reason"], "stop_reason": part["stop_reason"]}
    if "token_ids" in part:
        choice["token_ids"] = choice.get("token_ids", []) + part["token_ids"]
    told = choice.setdefault("logprobs", None)
    if part["logprobs"] is not None:
        before = told or {name: [] for name in columns}
        choice["logprobs"] = part["logprobs"] | {
            name: before[name] + part["logprobs"][name] for name in columns
        }
