"""The laws of the parser: nothing depends on the cuts, nothing is held back without need, nothing raises."""

import json
from collections.abc import Callable
from time import process_time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actorllm.parsing import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    CallArguments,
    CallBegun,
    CallEnded,
    Content,
    Reasoning,
    opens_reasoning,
)

from .told import Called, Thought, Told, cut, parsed, parser, told

FORMATS = ["hermes", "llama3_json", "mistral", "pythonic"]

FRAGMENTS = [
    *("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool", "_call>", "</", "<", ">"),
    *("<|python_tag|>", "<|python_start|>", "<|python_end|>", "<|", "[TOOL_CALLS]", "[ARGS]", "[TOOL_"),
    *("{", "}", "[", "]", "(", ")", ":", ",", ";", "=", '"', "'", "\\", "\\u00", "\n", " ", "-", "1", ".5"),
    *('{"name": "f", "arguments": {', '{"name": "f"', '"parameters": {"a": ', '"name": ', '"arguments": '),
    *("f(", "f(a=", "[f(a='", "f", "g", '"f"', "True", "null", "é", "😀", "\ud800", "text", "}}", "}]}"),
]  # fmt: skip

TEXTS = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)

ANYTHING = st.text() | TEXTS

MARKERS = ("<tool_call>", "[TOOL_CALLS]", "<think>")


@pytest.mark.slow
@pytest.mark.parametrize("tools", [*FORMATS, None])
@settings(max_examples=500, deadline=None)
@given(text=TEXTS, reasoning=st.sampled_from([None, "think"]), begun=st.booleans(), places=st.data())
@example(text="[f(a='\\", reasoning=None, begun=False, places=None)
def test_any_text_has_one_meaning_however_it_is_cut(
    tools: str | None, text: str, reasoning: str | None, begun: bool, places: st.DataObject | None
) -> None:
    whole = parsed([text], tools, reasoning, in_reasoning=begun)
    assert parsed(list(text), tools, reasoning, in_reasoning=begun) == whole
    if places is not None:
        drawn = places.draw(st.lists(st.integers(0, len(text)), max_size=5))
        assert parsed(cut(text, drawn), tools, reasoning, in_reasoning=begun) == whole
    if tools is None:
        assert whole == (thought_of(text, begun) if reasoning else [text] * bool(text))
    elif reasoning is None and not any(isinstance(each, Called) for each in whole):
        assert whole == [text] * bool(text)
    stand_in_order(whole, text, python=tools == "pythonic")


def thought_of(text: str, begun: bool) -> Told:
    """What is to be made of a whole text without tools."""
    opened = text.lstrip().startswith("<think>")
    if not opened and not begun:
        return [text] * bool(text)
    thought, _, rest = (text.lstrip().removeprefix("<think>") if opened else text).partition("</think>")
    both: Told = [Thought(thought), rest.lstrip()]
    return [each for each in both if each not in (Thought(""), "")]


def stand_in_order(whole: Told, text: str, *, python: bool) -> None:
    """All that is told stands so in the text, one thing behind the other."""
    place = 0
    for each in whole:
        piece = each if isinstance(each, str) else each.text if isinstance(each, Thought) else each.arguments
        if not isinstance(each, Called) or (not python and piece != "{}"):
            assert piece in text[place:]
            place = text.index(piece, place) + len(piece)


@pytest.mark.slow
@pytest.mark.parametrize("tools", ["hermes", "mistral"])
@settings(max_examples=200, deadline=None)
@given(text=ANYTHING.filter(lambda text: not any(marker in text for marker in MARKERS)))
def test_text_without_a_marker_is_content(tools: str, text: str) -> None:
    expected = [text] if text else []
    assert parsed([text], tools, "think") == expected
    assert parsed(list(text), tools, "think") == expected


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | ANYTHING,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANYTHING, inner, max_size=3),
    max_leaves=8,
)
ARGUMENTS = st.dictionaries(ANYTHING, JSON, max_size=4)


def written(tools: str) -> Callable[[str], str]:
    form = TOOL_FORMATS[tools]
    before = f"{form.begin} [" if tools == "mistral" else form.begin
    behind = "]" if tools == "mistral" else form.end
    return lambda arguments: f'{before}{{"name": "f", "{form.member}": {arguments}}}{behind}'


@pytest.mark.slow
@pytest.mark.parametrize("tools", ["hermes", "llama3_json", "mistral"])
@settings(max_examples=200, deadline=None)
@given(arguments=ARGUMENTS, ascii_only=st.booleans(), indent=st.sampled_from([None, 2]))
def test_json_arguments_are_passed_as_they_were_written(
    tools: str, arguments: object, ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(arguments, ensure_ascii=ascii_only, indent=indent)
    assert parsed([written(tools)(text)], tools) == [Called("f", text)]


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(arguments=st.dictionaries(st.from_regex(r"[a-z_]{1,5}", fullmatch=True), JSON, max_size=4))
def test_python_literals_are_made_json(arguments: dict[str, object]) -> None:
    text = f"[f({', '.join(f'{name}={value!r}' for name, value in arguments.items())})]"
    [call] = parsed([text], "pythonic")
    assert isinstance(call, Called)
    assert json.loads(call.arguments) == arguments


def test_content_and_reasoning_are_given_at_once_except_what_may_be_a_marker() -> None:
    each = parser("hermes", "think")
    assert each.feed("<th") == []
    assert each.feed("ink>a<b") == [Reasoning("a<b")]
    assert each.feed(" </thin") == [Reasoning(" ")]
    assert each.feed("g </") == [Reasoning("</thing ")]
    assert each.feed("think>\n") == []
    assert each.feed("\nA <tool") == [Content("A ")]
    assert each.feed("s <") == [Content("<tools ")]
    assert each.feed("tool_cal") == []
    assert each.feed("m <tool_call>x") == [Content("<tool_calm <tool_call>x")]
    assert each.feed(" ") == [Content(" ")]
    assert each.finish() == []


def test_a_call_is_said_when_its_name_is_known_and_its_arguments_as_they_come() -> None:
    each = parser("hermes")
    assert each.feed('<tool_call>\n{"name": "get_weather') == []
    assert each.feed('"') == [CallBegun(0, "get_weather")]
    assert each.feed(', "argum') == []
    assert each.feed('ents": {"ci') == [CallArguments(0, '{"ci')]
    assert each.feed('ty": "K\\') == [CallArguments(0, 'ty": "K\\')]
    assert each.feed('""') == [CallArguments(0, '""')]
    assert each.feed("}") == [CallArguments(0, "}")]
    assert each.feed("}") == [CallEnded(0)]
    assert each.feed("\n</tool_call>\n") == []
    assert each.feed("B") == [Content("\nB")]


def test_broken_arguments_are_given_at_once_except_what_may_be_the_marker() -> None:
    each = parser("hermes")
    begun = [CallBegun(0, "f"), CallArguments(0, "{")]
    assert each.feed('<tool_call>{"name": "f", "arguments": {<') == begun
    assert each.feed("a </tool") == [CallArguments(0, "<a ")]
    assert each.feed("_call>") == [CallEnded(0)]


def test_an_answer_that_cannot_be_a_call_any_more_is_content_at_once() -> None:
    llama, pythonic, unknown = parser("llama3_json"), parser("pythonic"), parser("llama3_json")
    assert llama.feed(' {"city"') == [Content(' {"city"')]
    assert llama.feed('; {"na') == [Content('; {"na')]
    assert pythonic.feed("[f(a=1") == []
    assert pythonic.feed(" +") == [Content("[f(a=1 +")]
    assert unknown.feed('{"name": "Bob"') == [Content('{"name": "Bob"')]
    assert unknown.feed(', "a": 1') == [Content(', "a": 1')]


def test_a_python_call_is_said_when_it_is_whole() -> None:
    each = parser("pythonic")
    assert each.feed("[f(a=[1") == []
    assert each.feed("])") == [CallBegun(0, "f"), CallArguments(0, '{"a": [1]}'), CallEnded(0)]
    assert each.feed(", f(") == []
    assert each.finish() == [Content(", f(")]


def test_an_end_is_an_end() -> None:
    each = parser("hermes")
    assert each.feed("a <") == [Content("a ")]
    assert each.finish() == [Content("<")]
    assert each.feed("more") == []
    assert each.finish() == []


LONG = 100_000

# What is before, what is repeated, and what is behind.
LONG_TEXTS = {
    "content": ("hermes", "", "<tool_cal", ""),
    "spaces": ("hermes", "", " ", ""),
    "spaces in front": ("llama3_json", "", "\n", '{"name": "f"}'),
    "reasoning": ("hermes", "<think>", "</thin", ""),
    "string": ("hermes", '<tool_call>{"name": "f", "arguments": {"a": "', "x\\n ", '"}}</tool_call>'),
    "early arguments": ("mistral", '[TOOL_CALLS][{"arguments": {"a": "', "x", '"}, "name": "f"}]'),
    "name": ("llama3_json", '{"name": "', "f", '"}'),
    "broken": ("hermes", '<tool_call>{"name": "f", "arguments": (', "</tool", ""),
    "many calls": ("mistral", "", "[TOOL_CALLS]f{}", ""),
    "python": ("pythonic", "[f(a='", "x", "')]"),
    "python numbers": ("pythonic", "[f(a=[", "1,", "])]"),
}


def long_text(name: str, length: int) -> str:
    _, before, repeated, behind = LONG_TEXTS[name]
    return before + repeated * (length // len(repeated)) + behind


def cpu_time(name: str, length: int, count: int) -> float:
    """Seconds to read so many such texts, character by character."""
    tools, text, begin = LONG_TEXTS[name][0], long_text(name, length), process_time()
    for _ in range(count):
        each = parser(tools, "think")
        events = [event for char in text for event in each.feed(char)]
        assert told([*events, *each.finish()]) == parsed([text], tools, "think")
    return process_time() - begin


@pytest.mark.slow
@pytest.mark.parametrize("name", LONG_TEXTS)
def test_a_long_answer_in_single_characters_takes_linear_time(name: str) -> None:
    """A long text takes about what sixteen sixteenths do: 16 times as much, if all were read again."""
    cpu_time(name, LONG // 16, 1)
    assert cpu_time(name, LONG, 1) < 5 * cpu_time(name, LONG // 16, 16)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tools", "before", "behind"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": ', "}</tool_call>"),
        ("llama3_json", '{"name": "f", "parameters": ', "}"),
        ("mistral", "[TOOL_CALLS]f[ARGS]", ""),
        ("pythonic", "[f(a=", ")]"),
    ],
)
def test_deep_nesting(tools: str, before: str, behind: str) -> None:
    deep = '{"a": [' * 10_000 + "]}" * 10_000
    expected = f'{{"a": {deep}}}' if tools == "pythonic" else deep
    assert parsed([before + deep + behind], tools) == [Called("f", expected)]
    assert parsed(list(before + deep + behind), tools) == [Called("f", expected)]


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("<|im_start|>assistant\n<think>\n", True),
        ("<think>\n\n</think>\n\n", False),
        ("<think>a</think> <think>", True),
        ("what is <think>?<|im_end|>\n<|im_start|>assistant\n", False),
        ("assistant\n", False),
        ("</think>", False),
        ("", False),
    ],
)
def test_whether_a_prompt_has_begun_the_reasoning(prompt: str, expected: bool) -> None:
    assert opens_reasoning(REASONING_FORMATS["think"], prompt) is expected
