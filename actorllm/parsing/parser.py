"""The one parser of answers: reasoning, content and tool calls of every format."""

from collections.abc import Collection

from . import python
from .calls import Call, Outcome
from .events import Event
from .formats import ReasoningFormat, ToolFormat
from .output import Output
from .source import Reading, Source


class Parser:
    """Makes events of the text of one answer. Feeds text, gives events; never raises, whatever the text.

    reasoning     how the model marks its reasoning; None: it does not
    tools         how it calls tools; None: it does not
    names         the tools that there are: a call of any other is content
    in_reasoning  the prompt has begun the reasoning already

    How the text is cut changes nothing but how the texts of events are cut. Each thing is said as soon as
    it is certain: held back is only what may become a marker or a call whose name has not come, and, of
    Python calls, the whole of one, since any of its arguments may turn out to be no literal. The time is
    linear in the length of the text.

    Reasoning stands at the beginning or nowhere; where it does not end, all is reasoning. What turns out
    to be no call is content, as it was written. When a call has begun, what is broken before its arguments
    have ended goes on as arguments, up to the marker that ends calls or begins the next; a call that the
    answer's end cuts off ends there.
    """

    def __init__(
        self,
        reasoning: ReasoningFormat | None,
        tools: ToolFormat | None,
        names: Collection[str],
        *,
        in_reasoning: bool = False,
    ) -> None:
        self._source = Source()
        self._output = Output()
        self._finished = False
        self._reading = self._answer(reasoning, tools, frozenset(names), in_reasoning)

    def feed(self, text: str) -> list[Event]:
        """The events that are certain now; none after `finish`."""
        if self._finished:
            return []
        self._source.feed(text)
        next(self._reading)
        return self._output.poll()

    def finish(self) -> list[Event]:
        """The answer has ended, perhaps cut off: the last events."""
        if not self._finished:
            self._finished = True
            self._source.finish()
            next(self._reading, None)
            self._output.finish()
        return self._output.poll()

    def _answer(
        self,
        reasoning: ReasoningFormat | None,
        tools: ToolFormat | None,
        names: frozenset[str],
        in_reasoning: bool,
    ) -> Reading[None]:
        if reasoning is not None:
            yield from _reasoning(self._source, self._output, reasoning, in_reasoning)
        if tools is not None:
            yield from _Calls(self._source, self._output, tools, names).read()
        yield from self._source.until("", self._output.content)


def opens_reasoning(reasoning: ReasoningFormat, prompt_tail: str) -> bool:
    """Whether a prompt that ends so has begun the reasoning. A marker further up may be a user's word."""
    return prompt_tail.rstrip().endswith(reasoning.begin)


def _reasoning(
    source: Source, output: Output, reasoning: ReasoningFormat, in_reasoning: bool
) -> Reading[None]:
    """The reasoning at the beginning, its markers and the whitespace behind it, if there is one.

    A model may begin once more what the prompt has begun.
    """
    source.hold()
    yield from source.spaces()
    spaces = source.held()
    if (yield from source.starts(reasoning.begin)):
        source.take(len(reasoning.begin))
    elif in_reasoning:
        output.reasoning(spaces)
    else:
        output.content(spaces)
        return
    if (yield from source.until(reasoning.end, output.reasoning)):
        source.take(len(reasoning.end))
        yield from source.spaces()


class _Calls:
    """Reads what is not reasoning."""

    def __init__(self, source: Source, output: Output, tools: ToolFormat, names: frozenset[str]) -> None:
        self._source = source
        self._output = output
        self._tools = tools
        self._names = names

    def read(self) -> Reading[None]:
        """Calls as far as there may be some, and the content around them."""
        source, begin = self._source, self._tools.begin
        if self._tools.anywhere:
            while (yield from source.until(begin, self._output.content)):
                yield from self._block()
        else:
            yield from self._block()

    def _block(self) -> Reading[None]:
        """One call or several, with the markers around them."""
        source, tools = self._source, self._tools
        source.hold()
        yield from source.spaces()
        if (yield from source.starts(tools.begin)):
            source.take(len(tools.begin))
        yield from source.spaces()
        in_list = tools.syntax != "object" and (yield from source.peek()) == "["
        if in_list:
            source.take()
            yield from source.spaces()
        outcome = yield from self._calls("," if in_list else tools.separator, "]" if in_list else "")
        if outcome is Outcome.BROKEN:
            return
        yield from source.spaces()
        if outcome is Outcome.CALL and tools.end and (yield from source.starts(tools.end)):
            source.take(len(tools.end))
            source.held()
        self._output.content(source.held())

    def _calls(self, separator: str, closer: str) -> Reading[Outcome]:
        """Calls up to the closer, which is dropped with the separators, unless it belongs to no call.

        The source holds what is read behind the last of them, if it is none that is broken.
        """
        source = self._source
        while (outcome := (yield from self._call(bool(closer)))) is not Outcome.BROKEN:
            source.hold()
            yield from source.spaces()
            char = yield from source.peek()
            if separator and char == separator:
                source.take()
                yield from source.spaces()
                char = yield from source.peek()
                if char not in ("", closer):
                    continue
            if char == closer or not char:
                source.take(len(char))
                if outcome is Outcome.CALL:
                    source.hold()
            break
        return outcome

    def _call(self, in_list: bool) -> Reading[Outcome]:
        tools, source = self._tools, self._source
        call = Call(
            source,
            self._output,
            self._names,
            tools.end or (tools.begin if tools.anywhere else ""),
            strict=not tools.anywhere,
        )
        if tools.syntax == "python" and in_list:
            return (yield from self._python())
        if tools.syntax == "array" and not in_list:
            return (yield from call.read_infixed(tools.infix))
        if tools.syntax != "python" and (yield from source.peek()) == "{":
            return (yield from call.read_object())
        self._output.content(source.held())
        return Outcome.BROKEN

    def _python(self) -> Reading[Outcome]:
        call = yield from python.call(self._source)
        held = self._source.held()
        if call is None or call[0] not in self._names:
            self._output.content(held)
            return Outcome.BROKEN if call is None else Outcome.CONTENT
        name, arguments = call
        self._output.begin(name)
        self._output.arguments(arguments)
        self._output.end()
        return Outcome.CALL
