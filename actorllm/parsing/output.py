"""The events of an answer, as they are found."""

from collections.abc import Callable

from .events import CallArguments, CallBegun, CallEnded, Content, Event, Reasoning


class Output:
    """Numbers the calls, joins neighbouring pieces, and leaves out content beside calls that is only
    whitespace.
    """

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._pieces: list[str] = []
        self._make: Callable[[str], Event] = Content
        self._num_calls = 0
        self._spaces: list[str] = []
        self._is_blank = True

    def content(self, text: str) -> None:
        """What is said to the user; whitespace waits for what follows it."""
        if not text:
            return
        if self._is_blank:
            self._spaces.append(text)
            if text.isspace():
                return
            text = "".join(self._spaces)
            self._spaces.clear()
            self._is_blank = False
        self._put(Content, text)

    def reasoning(self, text: str) -> None:
        """What the model thinks."""
        self._put(Reasoning, text)

    def begin(self, name: str) -> None:
        """A call begins."""
        self._spaces.clear()
        self._is_blank = True
        self._flush()
        self._events.append(CallBegun(self._num_calls, name))
        self._num_calls += 1

    def arguments(self, text: str) -> None:
        """Of the call that has begun."""
        self._put(self._arguments, text)

    def end(self) -> None:
        """The call that has begun ends."""
        self._flush()
        self._events.append(CallEnded(self._num_calls - 1))

    def finish(self) -> None:
        """The answer has ended: whitespace is content when it is all there is."""
        if self._spaces and self._num_calls == 0:
            self._put(Content, "".join(self._spaces))
        self._spaces.clear()

    def poll(self) -> list[Event]:
        """The events since the last time."""
        self._flush()
        events, self._events = self._events, []
        return events

    def _arguments(self, text: str) -> Event:
        return CallArguments(self._num_calls - 1, text)

    def _put(self, make: Callable[[str], Event], text: str) -> None:
        if make != self._make:
            self._flush()
            self._make = make
        self._pieces.append(text)

    def _flush(self) -> None:
        if text := "".join(self._pieces):
            self._events.append(self._make(text))
        self._pieces.clear()
