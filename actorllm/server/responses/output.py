"""The items of an answer as they grow, and the events that tell it."""

from collections.abc import Sequence
from typing import ClassVar

from ...parsing import CallArguments, CallBegun, CallEnded, Content, Event, Reasoning
from ..chat.answer import new_call_id
from ..told import Json
from .items import has_object, new_id


class Growing:
    """One item. Its events are complete but for their `sequence_number`."""

    kind: ClassVar[str]
    deltas: ClassVar[str]

    def __init__(self, index: int) -> None:
        self.id = new_id(self.kind)
        self._index = index
        self._texts: list[str] = []

    def begin(self) -> list[Json]:
        """It is there, and says nothing yet."""
        return [self._event("output_item.added", item=self.item("in_progress"))]

    def add(self, text: str, logprobs: Sequence[Json] = ()) -> Json:
        """More of its text."""
        self._texts.append(text)
        return self._piece("delta", delta=text)

    def end(self, status: str) -> list[Json]:
        """Nothing more comes."""
        return [self._event("output_item.done", item=self.item(status))]

    def item(self, status: str) -> Json:
        """All of it, as it is now."""
        return {"id": self.id, "type": self.kind, "status": status}

    @property
    def text(self) -> str:
        """What it says."""
        self._texts = ["".join(self._texts)]
        return self._texts[0]

    def _piece(self, name: str, **more: object) -> Json:
        return self._event(f"{self.deltas}.{name}", item_id=self.id, **more)

    def _event(self, name: str, **more: object) -> Json:
        return {"type": f"response.{name}", "output_index": self._index, **more}


class _Spoken(Growing):
    """An item with one part of content."""

    def begin(self) -> list[Json]:
        """It is there, and so is its part."""
        added = self._event("output_item.added", item=self.item("in_progress") | {"content": []})
        return [added, self._part("added")]

    def end(self, status: str) -> list[Json]:
        """The text as a whole, the part, the item."""
        done = self._piece("done", content_index=0, text=self.text)
        return [done, self._part("done"), *super().end(status)]

    def item(self, status: str) -> Json:
        """The same with its content."""
        return super().item(status) | {"content": [self.part()]}

    def part(self) -> Json:
        """The part of content."""
        raise NotImplementedError

    def _part(self, name: str) -> Json:
        return self._event(f"content_part.{name}", item_id=self.id, content_index=0, part=self.part())


class _Message(_Spoken):
    """What is said to the user."""

    kind = "message"
    deltas = "output_text"

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self._logprobs: list[Json] = []

    def add(self, text: str, logprobs: Sequence[Json] = ()) -> Json:
        """More of its text, and what is told of the tokens that it was."""
        self._logprobs += logprobs
        return super().add(text) | {"content_index": 0, "logprobs": list(logprobs)}

    def end(self, status: str) -> list[Json]:
        """The same, with what is told of the tokens."""
        done, *rest = super().end(status)
        return [done | {"logprobs": list(self._logprobs)}, *rest]

    def item(self, status: str) -> Json:
        """The same with its role."""
        return super().item(status) | {"role": "assistant"}

    def part(self) -> Json:
        """The text."""
        told = list(self._logprobs)
        return {"type": "output_text", "text": self.text, "annotations": [], "logprobs": told}


class _Thought(_Spoken):
    """What the model thinks."""

    kind = "reasoning"
    deltas = "reasoning_text"

    def add(self, text: str, logprobs: Sequence[Json] = ()) -> Json:
        """More of its text."""
        return super().add(text) | {"content_index": 0}

    def item(self, status: str) -> Json:
        """The same without a summary."""
        return super().item(status) | {"summary": []}

    def part(self) -> Json:
        """The text."""
        return {"type": "reasoning_text", "text": self.text}


class _Call(Growing):
    """A function that is called."""

    kind = "function_call"
    deltas = "function_call_arguments"

    def __init__(self, index: int, name: str) -> None:
        super().__init__(index)
        self._name = name
        self._call_id = new_call_id()

    def end(self, status: str) -> list[Json]:
        """The arguments, and the call. It is complete if they are an object, whatever came behind them."""
        status = "completed" if has_object(self.text) else "incomplete"
        return [self._piece("done", arguments=self.text), *super().end(status)]

    def item(self, status: str) -> Json:
        """The same with the call."""
        call = {"call_id": self._call_id, "name": self._name, "arguments": self.text}
        return super().item(status) | call


class Output:
    """All items of one answer. One grows at a time, the last."""

    def __init__(self) -> None:
        self._items: list[Json] = []
        self._growing: Growing | None = None

    @property
    def items(self) -> list[Json]:
        """The items as they are now; one that has not ended is incomplete."""
        last = [] if self._growing is None else [self._growing.item("incomplete")]
        return [*self._items, *last]

    @property
    def is_speaking(self) -> bool:
        """Whether the last item is a message that has not ended."""
        return isinstance(self._growing, _Message)

    def feed(self, event: Event, logprobs: Sequence[Json] = ()) -> list[Json]:
        """What an event of the answer adds; `logprobs` are told of the tokens of content."""
        match event:
            case Content(text):
                return self._say(_Message, text, logprobs)
            case Reasoning(text):
                return self._say(_Thought, text)
            case CallBegun(_, name):
                return self._begin(_Call(self._next, name))
            case CallArguments(_, text):
                assert self._growing is not None
                return [self._growing.add(text)]
            case CallEnded():
                return self._end("completed")

    def finish(self, status: str) -> list[Json]:
        """The answer has ended, and with it the last item. One that says nothing is an empty message."""
        begun = [] if self._items or self._growing else self._begin(_Message(0))
        return [*begun, *self._end(status)]

    @property
    def _next(self) -> int:
        return len(self._items) + (self._growing is not None)

    def _say(self, kind: type[_Spoken], text: str, logprobs: Sequence[Json] = ()) -> list[Json]:
        begun = [] if isinstance(self._growing, kind) else self._begin(kind(self._next))
        assert self._growing is not None
        return [*begun, self._growing.add(text, logprobs)]

    def _begin(self, item: Growing) -> list[Json]:
        ended = self._end("completed")
        self._growing = item
        return [*ended, *item.begin()]

    def _end(self, status: str) -> list[Json]:
        if self._growing is None:
            return []
        events = self._growing.end(status)
        self._items.append(events[-1]["item"])
        self._growing = None
        return events
