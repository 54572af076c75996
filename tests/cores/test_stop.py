"""Stop strings, through the Detokenizer: how the text comes in tokens and turns changes nothing.

Nothing of a stop string is shown before it is certain that it is none, and then at once.
"""

import codecs
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise, product

import pytest

from actorllm.cores.detokenizer import Detokenizer
from actorllm.cores.text import StopMatcher
from actorllm.messages import Delta, Ending, TextRules, Tokens, Track, pack, pack_ids, unpack


@dataclass(frozen=True)
class Words:
    pieces: Sequence[bytes]
    special_ids: frozenset[int] = frozenset()


def expected(stop: Sequence[str], include: bool, text: str) -> tuple[str, str | None]:
    """Read on by characters: what stands at the end first ends the text, the longest if several do."""
    for end in range(1, len(text) + 1):
        standing = [string for string in stop if string and text[:end].endswith(string)]
        if standing:
            found = max(standing, key=len)
            return text[: end if include else end - len(found)], found
    return text, None


def deltas(
    chunks: Sequence[bytes], rules: TextRules, turns: Iterable[int] = (), prompt: bytes = b""
) -> list[Delta]:
    """What is said of a request whose answer is one token a chunk; `turns` is how many tokens each turn has.

    It runs into its limit, but not in the turn of its last token; late tokens still come.
    """
    pieces = [*chunks, *(bytes([byte]) for byte in prompt)]
    detokenizer = Detokenizer(Words(pieces))
    detokenizer.feed(Track(1, pack(list(range(len(chunks), len(pieces)))), rules))
    said: list[Delta] = []
    left = list(range(len(chunks)))
    lengths = [*turns, *[1] * len(chunks)]
    for step, length in enumerate(lengths):
        ids, left = left[:length], left[length:]
        endings = () if step + 1 < len(lengths) else (Ending(1, "length"),)
        detokenizer.feed(Tokens(step, pack_ids([1] * len(ids)), pack(ids), endings))
        for text in detokenizer.poll(0.0):
            said += text.deltas
        detokenizer.check()
    assert detokenizer.idle
    return said


def assert_said(said: list[Delta], chunks: Sequence[bytes], rules: TextRules, whole: str) -> None:
    """The right text and ending, and never a character too many or a token too few."""
    text, found = expected(rules.stop, rules.include_stop_str_in_output, whole)
    assert "".join(delta.text for delta in said) == text
    assert (said[-1].finish_reason, said[-1].stop_reason) == ("stop" if found else "length", found)
    taken, shown = 0, ""
    for delta in said[:-1]:
        assert delta.finish_reason is None
        taken += len(unpack(delta.tokens))
        shown += delta.text
        assert shown == certain(b"".join(chunks[:taken]), rules)


def certain(data: bytes, rules: TextRules) -> str:
    """What can be shown of a text that begins with these bytes, and in which no stop string stands yet."""
    text = codecs.getincrementaldecoder("utf-8")("replace").decode(data)
    begun = [string[:length] for string in rules.stop for length in range(len(string))]
    held = max((beginning for beginning in begun if text.endswith(beginning)), key=len, default="")
    return text if rules.include_stop_str_in_output else text.removesuffix(held)


def all_cuts(data: bytes) -> Iterable[list[bytes]]:
    """Every way to cut these bytes into tokens."""
    for choice in product([False, True], repeat=len(data) - 1):
        places = [at for at, is_cut in enumerate(choice, 1) if is_cut]
        yield [data[begin:end] for begin, end in pairwise([0, *places, len(data)])]


CASES = [
    (("ab",), b"xxabab"),
    (("abab",), b"aababab"),
    (("abab",), b"abaabab"),
    (("aaa",), b"aabaaaa"),
    (("aab",), b"aaaab"),
    (("ab", "abc"), b"xabcab"),
    (("abc", "ab"), b"abxab"),
    (("abcd", "bc"), b"aabcdbc"),
    (("bcd", "c"), b"abcd"),
    (("b", "aab"), b"xaab"),
    (("aab", "b"), b"xaab"),
    (("ab", "ab", ""), b"aabb"),
    (("abc", "bcd", "cde"), b"abdbcde"),
    (("abc",), b"abxabab"),
    (("\n\n", "\n\n\n"), b"a\n\n\n\nb"),
    (("é€",), "é€é€".encode()),
    (("é",), "x\u0309é".encode()),
    (("e\u0301", "e"), "éee\u0301".encode()),
    (("😀",), "a😁😀".encode()),
    (("\ufffd",), b"a\xf0\x9f\x98b"),
    (("a\ufffd",), b"xa\xe2\x82"),
    (("\ufffdb", "\ufffd\ufffd"), b"\xff\xc3\xe2\x82b"),
    (("\ufffd",), "a\ufffdb".encode()),
    (("€",), b"a\xe2\x82"),
    ((), b"ab"),
]


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize(("stop", "data"), CASES)
def test_all_cuts_of_a_short_text_into_tokens(stop: tuple[str, ...], data: bytes, include: bool) -> None:
    rules = TextRules(stop=stop, include_stop_str_in_output=include)
    whole = data.decode("utf-8", "replace")
    for chunks in all_cuts(data):
        assert_said(deltas(chunks, rules), chunks, rules, whole)


@pytest.mark.slow
def test_all_texts_of_two_letters_and_all_pairs_of_short_stop_strings() -> None:
    """Which finds every way in which two strings can overlap each other and themselves."""
    strings = ["".join(letters) for length in (1, 2, 3) for letters in product("ab", repeat=length)]
    texts = ["".join(letters) for letters in product("ab", repeat=7)]
    for stop in product(strings, repeat=2):
        for text, include in product(texts, [False, True]):
            matcher, shown, found = StopMatcher(stop, include), "", None
            for char in text:
                more, found = matcher.feed(char)
                shown += more
            assert (shown + matcher.finish(), found) == expected(stop, include, text)


@pytest.mark.parametrize("include", [False, True])
@pytest.mark.parametrize("text", ["ababaabab", "aababababa", "abcabdabce"])
def test_all_cuts_of_a_short_text_in_the_matcher(text: str, include: bool) -> None:
    stop = ("abab", "bda", "abce")
    for chunks in all_cuts(text.encode()):
        matcher, shown, found = StopMatcher(stop, include), "", None
        for chunk in chunks:
            more, found = matcher.feed(chunk.decode())
            shown += more
        assert (shown + matcher.finish(), found) == expected(stop, include, text)


@pytest.mark.slow
def test_random_cuts_of_long_texts_into_tokens_and_turns() -> None:
    seed = random.Random("stop")
    num_found = 0
    for _ in range(1000):
        letters = seed.choice(["ab", "abcdef", "aé€😀"])
        text = "".join(seed.choices(letters, k=60))
        stop = tuple("".join(seed.choices(letters, k=seed.randint(1, 6))) for _ in range(seed.randint(1, 4)))
        rules = TextRules(stop=stop, include_stop_str_in_output=seed.random() < 0.5)
        data = text.encode()
        places = sorted({0, len(data), *seed.choices(range(1, len(data)), k=seed.randrange(len(data)))})
        chunks = [data[begin:end] for begin, end in pairwise(places)]
        turns = seed.choices(range(5), k=len(chunks))
        said = deltas(chunks, rules, turns)
        assert_said(said, chunks, rules, text)
        num_found += said[-1].finish_reason == "stop"
    assert 500 < num_found < 1000


def test_a_stop_string_may_begin_with_the_character_that_the_prompt_began() -> None:
    for char, include in product(["é", "€", "😀"], [False, True]):
        data = char.encode()
        for at in range(1, len(data)):
            rules = TextRules(stop=(f"{char}b",), include_stop_str_in_output=include)
            for chunks in all_cuts(data[at:] + b"bc"):
                said = deltas(chunks, rules, prompt=b"P" + data[:at])
                assert "".join(delta.text for delta in said) == (f"{char}b" if include else "")
                assert said[-1].stop_reason == f"{char}b"


def test_the_prompt_is_no_part_of_a_stop_string() -> None:
    said = deltas([b"b"], TextRules(stop=("ab",)), prompt=b"a")
    assert [(delta.text, delta.finish_reason) for delta in said] == [("b", "length")]


def test_a_stop_string_that_is_shown_is_shown_as_it_comes() -> None:
    matcher = StopMatcher(("stop",), True)
    assert [matcher.feed(text) for text in ("a s", "to", "p b")] == [
        ("a s", None),
        ("to", None),
        ("p", "stop"),
    ]
    matcher = StopMatcher(("stop",), False)
    assert [matcher.feed(text) for text in ("a s", "to", "p b")] == [("a ", None), ("", None), ("", "stop")]
