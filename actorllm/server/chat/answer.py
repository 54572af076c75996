"""The answers to a conversation."""

import secrets
import string
from collections.abc import Sequence
from typing import Any

from ...cores.text import Vocabulary
from ...engine.outputs import CompletionOutput, RequestOutput
from ...parsing import CallArguments, CallBegun, Content, Event, Reasoning
from ..answers import NO_ENDING, Answer, ending
from ..told import Json
from .reading import Reading, Said, Turn, gathered
from .request import ChatRequest

ALPHANUMERIC = string.ascii_letters + string.digits


class ChatAnswer(Answer):
    """Messages of the assistant: content, reasoning and calls of tools."""

    prefix = "chatcmpl"
    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    _request: ChatRequest

    def __init__(self, body: ChatRequest, model: str, reading: Reading, vocabulary: Vocabulary) -> None:
        super().__init__(body, model)
        self._reading = reading
        self._vocabulary = vocabulary
        self._turns: dict[int, Turn] = {}

    def whole(self, outputs: Sequence[RequestOutput]) -> Json:
        """The same, with what is told of the conversation."""
        return super().whole(outputs) | self._told_prompt(outputs[0]) | self._prompt_ids(outputs[0])

    def _choice(self, index: int, output: RequestOutput, answer: CompletionOutput) -> Json:
        turn = self._turn(index, output)
        said = gathered(turn.news(answer))
        return {
            "index": index,
            "message": self._message(said),
            "logprobs": self._logprobs(answer),
            **ending(answer, turn.ending(answer)),
            **self._ids(answer),
        }

    def _message(self, said: Said) -> Json:
        is_silent = not said.content and bool(said.calls or said.reasoning)
        message: Json = {"role": "assistant", "content": None if is_silent else said.content}
        if said.reasoning and self._request.include_reasoning:
            message |= _reasoning(said.reasoning)
        if said.calls:
            message["tool_calls"] = [
                {"id": new_call_id(), "type": "function", "function": {"name": name, "arguments": arguments}}
                for name, arguments in said.calls
            ]
        return message

    def _opening(self, index: int, output: RequestOutput, answer: CompletionOutput) -> list[Json]:
        """Who speaks; the first one also tells what it answers to."""
        chunk = self._delta(index, {"role": "assistant", "content": ""})
        return [chunk | self._prompt_ids(output) if index == 0 else chunk]

    def _news(self, index: int, output: RequestOutput, answer: CompletionOutput) -> list[Json]:
        """New text and calls, and the end. What is told of the tokens is in the first chunk."""
        turn = self._turn(index, output)
        deltas = [delta for delta in map(self._said, turn.news(answer)) if delta is not None]
        if not deltas and self._tells and answer.token_ids:
            deltas = [{"content": ""}]
        told: Json = {"logprobs": self._logprobs(answer), **self._ids(answer)} if self._tells else {}
        found = [self._delta(index, delta, **({} if at else told)) for at, delta in enumerate(deltas)]
        if answer.finish_reason is not None:
            found.append(self._delta(index, {}, **ending(answer, turn.ending(answer))))
        return found

    def _said(self, event: Event) -> Json | None:
        """What an event adds to the message."""
        match event:
            case Content(text):
                return {"content": text}
            case Reasoning(text):
                return _reasoning(text) if self._request.include_reasoning else None
            case CallBegun(index, name):
                function = {"name": name, "arguments": ""}
                call = {"index": index, "id": new_call_id(), "type": "function", "function": function}
                return {"tool_calls": [call]}
            case CallArguments(index, text):
                return {"tool_calls": [{"index": index, "function": {"arguments": text}}]}
            case _:
                return None

    def _usage(self, outputs: Sequence[RequestOutput]) -> Json:
        """The same, with how many tokens are reasoning."""
        thought = sum(turn.num_thought for turn in self._turns.values())
        return super()._usage(outputs) | {"completion_tokens_details": {"reasoning_tokens": thought}}

    def _turn(self, index: int, output: RequestOutput) -> Turn:
        if index not in self._turns:
            self._turns[index] = self._reading.turn(output.prompt_token_ids, self._vocabulary)
        return self._turns[index]

    def _delta(self, index: int, delta: Json, **more: Any) -> Json:
        choice = {"index": index, "delta": delta, "logprobs": None, **NO_ENDING}
        return self._chunk(choice | more if more else choice)

    def _logprobs(self, answer: CompletionOutput) -> Json | None:
        if self._teller is None:
            return None
        return self._teller.chat(answer.logprobs or ())


def new_call_id() -> str:
    """The name of a call: nine letters and digits, which is all that Mistral's chat templates take."""
    return "".join(secrets.choice(ALPHANUMERIC) for _ in range(9))


def _reasoning(text: str) -> Json:
    """Reasoning, by the name that vLLM has for it now and by the one that it had."""
    return {"reasoning": text, "reasoning_content": text}
