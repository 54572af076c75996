import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from actorllm.cores.text import Decoder, StopMatcher, Vocabulary


@dataclass(frozen=True)
class Words:
    pieces: Sequence[bytes]
    special_ids: frozenset[int] = frozenset()


BYTES: Vocabulary = Words([bytes([byte]) for byte in range(256)])
EURO = "€".encode()

utf8_parts = st.lists(
    st.one_of(
        st.binary(max_size=3),
        st.text(max_size=3).map(lambda text: text.encode("utf-8", "surrogatepass")),
        st.sampled_from([b"\xe2\x82", b"\xf0\x9f\x98", b"\xc3", b"\x80", b"\xed\xa0", b"\xf4\x90", b"\xff"]),
    ),
    max_size=8,
)


def decode_in_pieces(decoder: Decoder, pieces: Iterable[Sequence[int]]) -> str:
    return "".join(map(decoder.feed, pieces)) + decoder.finish()


@given(utf8_parts)
def test_the_text_is_that_of_all_the_bytes(parts: list[bytes]) -> None:
    decoder = Decoder(BYTES, [], True)
    assert decode_in_pieces(decoder, parts) == b"".join(parts).decode("utf-8", "replace")


@given(utf8_parts)
def test_tokens_of_several_bytes_are_decoded_alike(parts: list[bytes]) -> None:
    decoder = Decoder(Words(parts), [], True)
    text = decode_in_pieces(decoder, [range(len(parts))])
    assert text == b"".join(parts).decode("utf-8", "replace")


def test_text_is_out_as_soon_as_it_is_certain() -> None:
    decoder = Decoder(BYTES, [], True)
    assert [decoder.feed([byte]) for byte in b"a" + EURO + b"b"] == ["a", "", "", "€", "b"]
    assert decoder.feed(EURO[:2]) == ""
    assert decoder.feed(b"x") == "\ufffdx"
    assert decoder.finish() == ""


def test_an_unfinished_character_comes_out_replaced_at_the_end() -> None:
    decoder = Decoder(BYTES, [], True)
    assert decoder.feed(b"a" + EURO[:2]) == "a"
    assert decoder.finish() == "\ufffd"


@given(st.text(max_size=4), st.characters(min_codepoint=128, exclude_categories=["Cs"]), st.text(max_size=4))
@example("", "ü", "")
@example("a", "語", "")
@example("", "€", "")
@example("", "\U0010ffff", "")
def test_the_output_completes_the_character_that_the_prompt_began(before: str, char: str, after: str) -> None:
    encoded = char.encode()
    for cut in range(1, len(encoded)):
        output = encoded[cut:] + after.encode()
        decoder = Decoder(BYTES, before.encode() + encoded[:cut], True)
        assert decode_in_pieces(decoder, [[byte] for byte in output]) == char + after
        decoder = Decoder(BYTES, before.encode() + encoded[:cut], True)
        assert decoder.feed(output) + decoder.finish() == char + after


@given(st.sampled_from([EURO[:1], EURO[:2], b"\xf0", b"\xf0\x9f\x98", b"\xc3"]), st.binary(max_size=6))
def test_what_the_prompt_left_over_gives_nothing_by_itself(left: bytes, output: bytes) -> None:
    joined = (left + output).decode("utf-8", "replace")
    alone = output.decode("utf-8", "replace")
    expected = alone if joined.startswith("\ufffd") else joined
    decoder = Decoder(BYTES, b"abc" + left, True)
    assert decode_in_pieces(decoder, [[byte] for byte in output]) == expected


def test_a_prompt_that_ends_whole_leaves_no_trace() -> None:
    for tail in (b"", b"abc", EURO, EURO[1:], b"\xff", b"\xed\xa0"):
        decoder = Decoder(BYTES, tail, True)
        assert decoder.feed(b"x") == "x"
        assert decoder.finish() == ""


def test_special_tokens_are_hidden_on_demand() -> None:
    words = Words([b"<s>", b"a", EURO[:1], EURO[1:]], frozenset({0}))
    assert decode_in_pieces(Decoder(words, [], True), [[0, 1, 0], [2, 0, 3]]) == "a€"
    assert decode_in_pieces(Decoder(words, [], False), [[0, 1, 0]]) == "<s>a<s>"


def test_only_one_space_between_special_tokens_is_left_out() -> None:
    words = Words([b" <s>", b"  </s>", b" a"], frozenset({0, 1}))
    decoder = Decoder(words, [0], False, spaces_between_special_tokens=False)
    assert decode_in_pieces(decoder, [[0, 1], [0], [2, 2, 1]]) == " <s> </s><s> a a  </s>"


def test_tokens_beyond_the_vocabulary_give_no_text() -> None:
    decoder = Decoder(Words([b"a", b"b"]), [2], False)
    assert decode_in_pieces(decoder, [[0, 2], [150_000], [1]]) == "ab"


def reference(stop: Sequence[str], include: bool, text: str) -> tuple[str, str | None]:
    """The same law, without any cleverness: earliest end, then earliest start."""
    ends = [(at + len(s), at, s) for s in stop for at in range(len(text)) if s and text.startswith(s, at)]
    if not ends:
        return text, None
    end, start, found = min(ends)
    return text[: end if include else start], found


def match_in_pieces(matcher: StopMatcher, pieces: Iterable[str]) -> tuple[str, str | None]:
    shown, found = "", None
    for piece in pieces:
        text, found = matcher.feed(piece)
        shown += text
    return shown + matcher.finish(), found


letters = st.text("ab", max_size=12)


@given(st.lists(st.text("abc", max_size=5), max_size=5), st.booleans(), st.lists(st.text("abc", max_size=4)))
@example(["ab", "abc"], False, ["xab", "c"])
@example(["bcd", "c"], False, ["ab", "cd"])
@example(["abcd", "bc"], True, ["abc", "d"])
@example(["aab"], False, ["aaa", "ab"])
@example(["b", "ab"], False, ["a", "b"])
def test_how_the_text_is_cut_changes_nothing(stop: list[str], include: bool, pieces: list[str]) -> None:
    whole = "".join(pieces)
    expected = reference(stop, include, whole)
    assert match_in_pieces(StopMatcher(tuple(stop), include), pieces) == expected
    assert match_in_pieces(StopMatcher(tuple(stop), include), [whole]) == expected
    assert match_in_pieces(StopMatcher(tuple(stop), include), whole) == expected


@given(st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=4), letters)
def test_only_what_could_become_a_stop_string_is_held_back(stop: list[str], text: str) -> None:
    matcher = StopMatcher(tuple(stop), False)
    shown, found = matcher.feed(text)
    if found is None:
        beginnings = {s[:length] for s in stop for length in range(len(s))}
        held = max((text[at:] for at in range(len(text) + 1) if text[at:] in beginnings), key=len)
        assert shown + held == text
        assert matcher.finish() == held


@pytest.mark.parametrize(
    ("stop", "text", "shown", "found"),
    [
        (("END",), "the END of", "the ", "END"),
        (("ab", "abc"), "xabc", "x", "ab"),
        (("bcd", "c"), "abcd", "ab", "c"),
        (("b", "ab"), "xab", "x", "ab"),
        (("ab", "b"), "xab", "x", "ab"),
        (("\n\n",), "a\n\n\n", "a", "\n\n"),
        (("",), "text", "text", None),
        ((), "text", "text", None),
    ],
)
def test_the_stop_string_that_ends_first_and_began_first_wins(
    stop: tuple[str, ...], text: str, shown: str, found: str | None
) -> None:
    assert StopMatcher(stop, False).feed(text) == (shown, found)


def test_the_stop_string_is_shown_on_demand() -> None:
    assert match_in_pieces(StopMatcher(("stop",), True), ["a st", "op b"]) == ("a stop", "stop")
    assert match_in_pieces(StopMatcher(("stop",), False), ["a st", "op b"]) == ("a ", "stop")


def test_after_a_stop_string_nothing_is_shown() -> None:
    matcher = StopMatcher(("x",), False)
    assert matcher.feed("ax") == ("a", "x")
    assert matcher.feed("more") == ("", "x")
    assert matcher.finish() == ""


def test_what_was_held_back_is_given_once() -> None:
    matcher = StopMatcher(("abc",), False)
    assert matcher.feed("xab") == ("x", None)
    assert matcher.finish() == "ab"
    assert matcher.finish() == ""
    assert matcher.feed("c") == ("c", None)


@pytest.mark.slow
def test_a_long_text_takes_time_in_proportion() -> None:
    matcher = StopMatcher(("a" * 500 + "b", "ab" * 200 + "c"), False)
    begun = time.process_time()
    shown = sum(len(matcher.feed("aaab")[0]) for _ in range(50_000)) + len(matcher.finish())
    assert shown == 200_000
    assert time.process_time() - begun < 3  # 0.1 s, as each character is looked at once
