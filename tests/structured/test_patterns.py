"""Regular expressions: what is written matches in full, and what might not is refused with its place."""

import json
import random
import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorllm.errors import InvalidRequest
from actorllm.structured import spec
from actorllm.structured.automaton import Automaton, TooLong
from actorllm.structured.charsets import ALL, charset, minus, of, union
from actorllm.structured.patterns import PatternError, anchored, lengths, parse

from .sampling import fits, new_grammars, outputs

BY_HAND = [
    r"a", r"abc", r"a|b", r"(a|b)c", r"(?:a|b)+?", r"(?P<name>a)b", r"^abc$", r"^a|b$", r"(^a|^b)c",
    r"a{3}", r"a{2,}", r"a{2,4}", r"a*?b", r"[a-z]+", r"[^a-z]", r"[^a-z\d]{2}", r"\d{3}-\d{4}", r"\D",
    r"\w+", r"\W", r"\s", r"\S{3}", r"[\s\S]{2}", r"[\w.-]+@[\w-]+\.[a-z]{2,3}", r".", r".{0,5}", r"[.]",
    r"\.", r"\\", r"\/", r"\-", r"[\]\[^-]", r"[a\-z]", r"[-az]", r"[az-]", r"\x41\u00e9\U0001F600",
    r"[\x41-\x43]", r"[\u4e00-\u9fff]{1,3}", r"é+", r"日本|\U0001F600", r"\n\t\r\f\v\a", r"[\b]", r"()",
    r"(|a)", r"a||b", r"", r"^$", r"\Aab\Z", r"(a(b(c)?)?)?", r"(a{1,2}){2,3}", r"[\d\-x]+", r"\"'`",
    r"[^\s]", r"[^\W]", r"[^\D]", r"[^\S]", r"\{\}", r"[{}]", r"a\|b", r"#.*", r"\$\d+\.\d{2}",
    r"(?:25[0-5]|2[0-4]\d|1?\d?\d)(?:\.(?:25[0-5]|1?\d?\d)){3}", r"[^\x01-\x7f]", r"&&", r"[~!@]",
]  # fmt: skip


def generated(seed: int) -> str:
    draw = random.Random(seed)

    def atom(depth: int) -> str:
        if depth and draw.random() < 0.4:
            return "(" + draw.choice(["", "?:"]) + choice(depth - 1) + ")"
        return draw.choice(
            ["a", "é", "0", r"\d", r"\w", r"\S", ".", "[a-f]", "[^x-z]", r"[^\w\s]", r"\n", " ", "_"]
        )

    def sequence(depth: int) -> str:
        return "".join(
            atom(depth) + draw.choice(["", "", "?", "{1,3}", "{0,2}?", "{2}"])
            for _ in range(draw.randint(0, 3))
        )

    def choice(depth: int) -> str:
        return "|".join(sequence(depth) for _ in range(draw.randint(1, 3)))

    return choice(2)


@pytest.mark.slow
def test_what_is_written_matches_in_full() -> None:
    patterns = BY_HAND + [generated(seed) for seed in range(60)]
    assert len(patterns) > 120
    finished = 0
    for pattern in patterns:
        for output in outputs({"regex": pattern}, 6, limit=200):
            assert re.fullmatch(pattern, output), (pattern, output)
            finished += 1
    assert finished >= 0.9 * 6 * len(patterns)


@pytest.mark.slow
def test_patterns_of_strings_match_once_they_are_read() -> None:
    for pattern in BY_HAND:
        schema = {"type": "string", "pattern": pattern}
        for output in outputs({"json": schema}, 4, limit=200):
            value = json.loads(output)
            assert re.search(pattern, value), (pattern, output)


@pytest.mark.parametrize(
    ("pattern", "right", "wrong"),
    [
        (r"\d+", "12", "1٣"),
        (r"[^\d]", "a", "٣"),
        (r".", "é", "\n"),
        (r"[^a]", "\n", "a"),
        (r"^a|bc$", "bc", "abc"),
        (r"\u00e9", "é", "e"),
        (r"[a-c]{2}", "ab", "abc"),
        (r"(|a)b", "b", "aab"),
        (r"[\w ]{10,60}\.", "a" * 60 + ".", "a" * 61 + "."),
        (r"[\w ]{10,60}\.", "a" * 10 + ".", "a" * 9 + "."),
        (r"[^a]{3,}", "é\nx日", "é\n"),
    ],
)
def test_a_pattern_is_enforced(pattern: str, right: str, wrong: str) -> None:
    assert re.fullmatch(pattern, right)
    assert fits({"regex": pattern}, right)
    assert not fits({"regex": pattern}, wrong)


@pytest.mark.parametrize("data", [b"\xed\xa0\x80", b"\xc0\x80", b"\x00", b"\xff"])
def test_no_set_has_what_is_no_text(data: bytes) -> None:
    assert not fits({"regex": r"[^a]+"}, data)
    assert not fits({"regex": r"[\s\S]+"}, data)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (r"(?=a)b", "a lookahead at 0"),
        (r"a(?!b)", "a lookahead at 1"),
        (r"(?<=a)b", "a lookbehind at 0"),
        (r"(?<!a)b", "a lookbehind at 0"),
        (r"(a)\1", "a backreference at 3"),
        (r"(?P<x>a)(?P=x)", "a backreference at 8"),
        (r"(?i)a", "a flag at 0"),
        (r"(?i:a)", "a flag at 0"),
        (r"(?>a)", "an atomic group at 0"),
        (r"(?#a)b", "a comment at 0"),
        (r"(a)?(?(1)b|c)", "a condition at 4"),
        (r"a\b", "a word boundary at 1"),
        (r"\Ba", "a word boundary at 0"),
        (r"a++", "a possessive count at 1"),
        (r"a{,3}", r"a count without a lowest number at 1, which is not possible; write \{0,"),
        (r"a{10001}", "a count beyond 10000 at 1"),
        (r"a{b", r"a \{ that counts nothing at 1"),
        (r"x^a", r"\^ at 1, which is not its start"),
        (r"a$b", r"\$ at 1, which is not its end"),
        (r"(a$)?b", r"\$ at 2, which is not its end"),
        (r"(a|^)*a", r"\^ at 3, which is not its start"),
        (r"\x00", "a set of no characters .* at 0"),
        (r"[\ud800]", "a set of no characters"),
        (r"[]a]", r"a \] at the start of a class at 1"),
        (r"[]", r"a \] at the start of a class at 1"),
        (r"[[a]", r"\[\[, which is ambiguous, at 0, .* put a backslash before the second"),
        (r"x[a--b]", "-- in a class, which is ambiguous, at 3, .* put a backslash before each"),
        (r"[+--]", "-- in a class, which is ambiguous, at 2"),
        (r"[--a]", "-- in a class, which is ambiguous, at 1"),
        (r"[a&&b]", "&& in a class, which is ambiguous, at 2"),
        (r"[a||b]", r"\|\| in a class, which is ambiguous, at 2"),
        (r"[^a~~]", "~~ in a class, which is ambiguous, at 3"),
        (r"\01", "the escape .0 at 0"),
        (r"\p{L}", "the escape .p at 0"),
        (r"(?<n>a)", r"a group that is not named as in \(\?P<name>...\) at 0"),
        (r"(?P<é>a)", "a group whose name is not of ASCII letters and digits at 0"),
        (r"(?P<x>a)(?P<x>b)", "a name of two groups at 8"),
        (r"a)", r"has a \) at 1, which closes nothing"),
        (r"b(a", r"has a \( at 1 that is not complete"),
        (r"b[a", r"has a \[ at 1 that is not complete"),
        (r"[a-", r"has a \[ at 0 that is not complete"),
        ("[a\\", r"has a \[ at 0 that is not complete"),
        ("ab\\", r"has a \\ at 2 that is not complete"),
        (r"a**", "a count of a count at 2"),
        (r"a{2}{3}", "a count of a count at 4"),
        (r"a|*", r"a \* that repeats nothing at 2"),
        (r"(+)", r"a \+ that repeats nothing at 1"),
        (r"a{3,2}", "a count whose lowest number is above its highest at 1"),
        ("a{" + "9" * 5000 + "}", "a count beyond 10000 at 1"),
        ("a{\u0661}", r"a \{ that counts nothing at 1"),
        (r"\x4", "an escape .x without its 2 digits at 0"),
        (r"\u004 ", "an escape .u without its 4 digits at 0"),
        (r"\U00110000", "the number of no character at 0"),
        (r"[z-a]", "a range whose first character is after its last at 0"),
        (r"[a-\d]", "a range that begins or ends with no character of a text at 0"),
        (r"[\d-x]", "a range that begins or ends with no character of a text at 0"),
        ("a*" * 9, "has more than 8 parts in a row that may be left out and repeat without end; put"),
        (r"(?:a*(?:b*c|d*)e?)" * 5, "has more than 8 parts in a row"),
        ("a" * 10_001, "has 10001 characters; at most 10000 are possible"),
        ("(" * 51 + ")" * 51, "more than 50 groups within each other at 51"),
        ("(" * 5000 + ")" * 5000, "too deep|more than 50 groups"),
    ],
)
def test_what_is_not_surely_the_same_is_refused_with_its_place(pattern: str, words: str) -> None:
    with pytest.raises(InvalidRequest, match=words) as refusal:
        new_grammars().compile(spec({"regex": pattern}))
    assert refusal.value.param == "structured_outputs.regex"


def test_lengths() -> None:
    found = {
        pattern: lengths(parse(pattern))
        for pattern in ("", "ab", "a|bcd", "a*", "a{2,3}b?", "^(a+)?$", "a{0}")
    }
    assert found == {
        "": (0, 0), "ab": (2, 2), "a|bcd": (1, 3), "a*": (0, None), "a{2,3}b?": (2, 4), "^(a+)?$": (0, None),
        "a{0}": (0, 0),
    }  # fmt: skip


def test_sets_of_characters() -> None:
    assert charset((5, 9), (1, 3), (8, 12), (4, 4)) == ((1, 12),)
    assert ALL == ((1, 0xD7FF), (0xE000, 0x10FFFF))
    assert minus(of("abcxyz"), of("by")) == of("acxz")
    assert union(of("ab"), of("bc")) == of("abc")
    assert minus(of("abc"), ALL) == ()


def test_reading_patterns_leaves_the_warnings_of_the_process_alone() -> None:
    before = list(warnings.filters)
    start = threading.Barrier(4)

    def read_some(which: int) -> None:
        start.wait()
        for number in range(50):
            parse(f"[a-c]{{{which},{which + number}}}")
            with pytest.raises(PatternError, match="ambiguous"):
                parse(f"[[a]{{{which + number}}}")

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(read_some, range(4)))
    assert warnings.filters == before


@settings(max_examples=3000, derandomize=True, database=None, deadline=None)
@given(st.text(st.sampled_from("ab09(|)?P<x>:[^]-&~{,2}*+\\.$dDsbnAZuxé"), max_size=12))
def test_what_is_read_is_a_regular_expression_without_a_warning(pattern: str) -> None:
    try:
        parse(pattern)
    except PatternError:
        return
    re.compile(pattern)  # warnings are errors here


TEXTS = st.text(st.sampled_from("aab0_é\n -.x"), max_size=6)


@pytest.mark.slow
@settings(max_examples=500, derandomize=True, database=None, deadline=None)
@given(
    st.integers(0, 300).map(generated) | st.sampled_from(BY_HAND),
    st.sampled_from(["{}", "^(?:{})", "(?:{})$", "^(?:{})$", "(?:{}){{0,3}}", "(?:(?:{})b)*x"]),
    st.lists(TEXTS, min_size=1, max_size=5),
)
def test_a_pattern_is_found_where_it_matches(pattern: str, around: str, texts: list[str]) -> None:
    pattern = around.format(pattern)
    node = parse(pattern, wide=True)
    try:
        anchored(node)
    except PatternError:
        return
    automaton = Automaton(node, max(map(len, texts)))
    assert [automaton.found(text) for text in texts] == [bool(re.search(pattern, text)) for text in texts]


@pytest.mark.parametrize(
    ("pattern", "text", "found"),
    [
        (r"^a{3,}$", "a" * 100, True),
        (r"^(?:a{40}){2}$", "a" * 80, True),
        (r"^(?:a{40}){2}$", "a" * 81, False),
        (r"a$", "a\n", True),
        (r"a$", "a\n\n", False),
        (r"^\d$", "٣", True),
        (r"^[^\d]$", "٣", True),
        (r"^\s$", "\ufeff", True),
        (r"^.$", "\u2028", True),
        (r"^x.$", "x\0", True),
        (r"a{0}", "", True),
        (r"(?:a?){90}b", "a" * 99, False),
        (r"(?:(?:a*)*)*b", "a" * 99, False),
    ],
)
def test_it_is_found_by_some_reading(pattern: str, text: str, found: bool) -> None:
    assert Automaton(parse(pattern, wide=True), len(text)).found(text) == found


def test_what_takes_too_many_states_or_steps_is_said_to() -> None:
    with pytest.raises(TooLong, match="more than 20000 parts"):
        Automaton(parse("(?:(?:a{100}){100}){100}"), 100)
    automaton = Automaton(parse("(?:a|(?:a|b){50}){50}"), 100)
    with pytest.raises(TooLong, match="more than 500000 steps"):
        for _ in range(1000):
            automaton.found("ab" * 50)
