"""The adapter: rows, markers, special tokens, end tokens, threads."""

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import combinations

import numpy as np
import pytest

from actorllm.errors import InvalidRequest
from actorllm.structured import XGrammars, spec

from .sampling import (
    EOS,
    PADDED,
    SIZE,
    SPECIAL,
    accepts,
    allowed,
    fits,
    masks_of,
    new_grammars,
    outputs,
    pieces,
)

THINK, TOOL = SIZE - 2, SIZE - 1
WORDS = -(-PADDED // 32)
ONES = b"\xff" * 4 * WORDS

DIGITS = spec({"regex": "[0-9]{2}"})
AFTER = spec({"regex": "[0-9]{2}", "start_after": "</think>"})


def opened(*texts: str) -> XGrammars:
    grammars = new_grammars()
    for request, text in enumerate(texts):
        grammars.compile(text)
        grammars.open(request, text)
    return grammars


def texts_of(mask: bytes) -> set[bytes]:
    return {pieces()[token] for token in np.flatnonzero(allowed(mask)[:SIZE])}


def test_a_mask_allows_what_may_come_next() -> None:
    grammars = opened(DIGITS)
    one, two = {b"%d" % digit for digit in range(10)}, {b"%02d" % number for number in range(100)}
    assert texts_of(masks_of(grammars, 0)) == one | two
    assert grammars.accept(0, [ord("7")]) is None
    assert texts_of(masks_of(grammars, 0)) == one
    assert grammars.accept(0, [ord("8")]) is None
    assert np.flatnonzero(allowed(masks_of(grammars, 0))).tolist() == list(EOS)


def test_an_end_token_is_allowed_only_where_the_grammar_is_complete() -> None:
    grammars = opened(spec({"regex": "ab?"}))
    assert not allowed(masks_of(grammars, 0))[list(EOS)].any()
    assert grammars.accept(0, [ord("a")]) is None
    assert np.flatnonzero(allowed(masks_of(grammars, 0))).tolist() == [ord("b"), *EOS]
    assert grammars.accept(0, [EOS[1]]) is None


def test_no_special_token_is_allowed_as_text() -> None:
    grammars = opened(spec({"regex": "[^x]{6,9}"}))
    assert not allowed(masks_of(grammars, 0))[sorted(SPECIAL)].any()
    for token in SPECIAL:
        grammars.open(1, spec({"regex": "[^x]{6,9}"}))
        assert grammars.accept(1, [ord("a"), token]) is not None


def test_neither_empty_pieces_nor_padding_are_allowed() -> None:
    bits = allowed(masks_of(opened(spec({"regex": "[^x]*"})), 0))
    empty = [token for token in range(SIZE) if not pieces()[token]]
    assert len(empty) == 2
    assert not bits[empty].any()
    assert not bits[SIZE:].any()
    assert bits[list(EOS)].all()


@pytest.mark.parametrize("token", [SIZE, PADDED - 1, PADDED, -1, SIZE - 6])
def test_a_token_without_a_piece_does_not_fit(token: int) -> None:
    grammars = opened(spec({"regex": "[^x]*"}))
    assert grammars.accept(0, [token]) is not None


def test_only_the_end_is_barred_before_the_marker() -> None:
    grammars = opened(AFTER)
    for text in (b"", b"so </th", b"ink"):
        assert grammars.accept(0, list(text)) is None
        assert np.flatnonzero(allowed(masks_of(grammars, 0)) == 0).tolist() == list(EOS)
    assert grammars.accept(0, list(b"</think>")) is None
    assert masks_of(grammars, 0) == masks_of(opened(DIGITS), 0)


def test_rows_that_nothing_binds_are_all_ones() -> None:
    grammars = opened(DIGITS, DIGITS, DIGITS, AFTER, DIGITS)
    assert grammars.accept(3, [EOS[0]]) is None  # has ended before its marker
    assert grammars.accept(0, [*b"12", EOS[0]]) is None  # has ended
    assert grammars.accept(1, [ord("x")]) == "token 120 does not fit the grammar"
    grammars.close(2)
    rows = masks_of(grammars, 0, 1, 2, 3, 4, 99)
    assert len(rows) == 6 * len(ONES)
    assert rows[: 4 * len(ONES)] == 4 * ONES
    assert rows[5 * len(ONES) :] == ONES
    assert rows[4 * len(ONES) : 5 * len(ONES)] == masks_of(opened(DIGITS), 0) != ONES
    assert masks_of(grammars) == b""


def test_what_has_failed_stays_so_and_what_has_ended_or_is_unknown_takes_all() -> None:
    grammars = opened(DIGITS, DIGITS)
    for tokens in ([ord("1"), ord("x"), ord("y")], [], [ord("1")]):
        assert grammars.accept(0, tokens) == "token 120 does not fit the grammar"
    assert grammars.accept(1, [*b"12", EOS[0], 5]) is None
    assert grammars.accept(1, [5]) is None
    assert grammars.accept(77, [5]) is None
    grammars.close(0)
    grammars.close(0)
    assert grammars.accept(0, [5]) is None


def test_an_end_token_too_early_does_not_fit() -> None:
    assert opened(DIGITS).accept(0, [ord("1"), EOS[0]]) is not None


def test_a_batch_is_filled_as_its_rows_are() -> None:
    texts = [spec({"regex": f"[{first}-z]{{1,4}}"}) for first in "abcdefgh"]
    grammars = opened(*texts)
    for request in range(0, 8, 2):
        assert grammars.accept(request, [ord("y")]) is None
    order = [3, 1, 7, 0, 2, 6, 5, 4]
    assert masks_of(grammars, *order) == b"".join(masks_of(grammars, request) for request in order)


def test_a_request_that_no_token_can_continue_has_failed() -> None:
    grammars = XGrammars(lambda: [b"a", b"b", b"<end>"], 3, lambda: [2], [2])
    text = spec({"regex": "ac"})
    grammars.compile(text)
    grammars.open(0, text)
    assert masks_of(grammars, 0) == b"\x01\0\0\0"
    assert grammars.accept(0, [0]) is None
    text = "nothing can follow: the grammar has no end there"
    assert grammars.fill([1, 0]) == (b"\xff" * 8, {0: text})
    assert grammars.fill([1, 0]) == (b"\xff" * 8, {})
    assert grammars.accept(0, [0]) == text


def test_a_model_without_an_end_token_has_no_structured_outputs() -> None:
    grammars = XGrammars(lambda: [b"a"], 1, lambda: [], [])
    with pytest.raises(InvalidRequest, match="needs a token that ends the answer"):
        grammars.compile(DIGITS)


@pytest.mark.parametrize(
    "grammar", ["root ::= root", "root ::= x\nx ::= y\ny ::= x", 'root ::= root "a"', 'root ::= "c"']
)
def test_a_grammar_that_cannot_begin_is_refused(grammar: str) -> None:
    grammars = XGrammars(lambda: [b"a", b"b", b"<end>"], 3, lambda: [2], [2])
    with pytest.raises(InvalidRequest, match="grammar derives no text that ends") as refusal:
        grammars.compile(spec({"grammar": grammar}))
    assert refusal.value.param == "structured_outputs.grammar"


def test_a_grammar_of_all_texts_can_begin() -> None:
    for grammar in ('root ::= ""', r"root ::= [^\x00]*"):
        opened(spec({"grammar": grammar}))


def test_to_open_a_grammar_its_text_is_not_read_again() -> None:
    text = spec({"regex": "[0-9]", "start_after": "x"})
    grammars = opened(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("json.loads", None)
        grammars.open(1, text)
    assert grammars.accept(1, b"12x3") is None


def test_a_grammar_is_forgotten_but_not_by_those_who_use_it() -> None:
    grammars = opened(DIGITS)
    assert 0 < grammars.size(DIGITS) < 100_000
    grammars.forget(DIGITS)
    grammars.forget(DIGITS)
    assert masks_of(grammars, 0) == masks_of(opened(DIGITS), 0)
    assert grammars.accept(0, [*b"12", EOS[0]]) is None
    with pytest.raises(KeyError):
        grammars.size(DIGITS)
    with pytest.raises(KeyError):
        grammars.open(1, DIGITS)


def test_threads_may_compile_at_once() -> None:
    grammars = new_grammars()
    texts = [spec({"regex": f"[a-z]{{{number}}}"}) for number in range(1, 17)]
    start = threading.Barrier(4)

    def compile_some(which: int) -> None:
        start.wait()
        for text in texts[which::4] + texts[:2]:
            grammars.compile(text)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(compile_some, range(4)))
    for number, text in enumerate(texts, 1):
        assert accepts(grammars, text, "q" * number)
        assert not accepts(grammars, text, "q" * (number + 1))


@pytest.mark.parametrize("cuts", [cuts for count in range(4) for cuts in combinations(range(1, 8), count)])
def test_the_marker_is_found_in_all_its_cuts(cuts: tuple[int, ...]) -> None:
    marker = b"</think>"
    parts = [marker[start:end] for start, end in zip((0, *cuts), (*cuts, len(marker)), strict=True)]
    words = [b"x</", b"<</", *parts, *(b"%d" % digit for digit in range(10)), b"<end>"]
    grammars = XGrammars(lambda: words, len(words), lambda: [], [len(words) - 1])
    grammars.compile(AFTER)
    grammars.open(0, AFTER)
    assert grammars.accept(0, [0, 0, 1][: 2 + (cuts[:1] != (2,))]) is None
    for token in range(2, 2 + len(parts)):
        assert np.flatnonzero(allowed(masks_of(grammars, 0)) == 0).tolist() == [len(words) - 1]
        assert grammars.accept(0, [token]) is None
    digits = range(2 + len(parts), 12 + len(parts))
    assert np.flatnonzero(allowed(masks_of(grammars, 0))).tolist() == list(digits)
    assert grammars.accept(0, [digits[1], digits[2], len(words) - 1]) is None


def test_a_marker_that_is_a_special_token_is_found() -> None:
    grammars = opened(AFTER)
    assert grammars.accept(0, [*b"12 or x", TOOL, THINK]) is None
    assert texts_of(masks_of(grammars, 0)) == texts_of(masks_of(opened(DIGITS), 0))
    assert grammars.accept(0, [*b"34", EOS[0]]) is None


@pytest.mark.parametrize(("rest", "fit"), [(b"1", True), (b"12", True), (b"x", False), (b"123", False)])
def test_the_rest_of_a_token_after_the_marker_must_fit(rest: bytes, fit: bool) -> None:
    words = [b"a>", b"ink>" + rest, b"</th", b"<end>", b"1", b"2"]
    grammars = XGrammars(lambda: words, 6, lambda: [], [3])
    grammars.compile(AFTER)
    grammars.open(0, AFTER)
    assert grammars.accept(0, [0, 2]) is None
    fault = grammars.accept(0, [1])
    if not fit:
        shown = f"whose rest {rest.decode()!r} does not fit the grammar"
        assert fault == f"the marker ended within a token, {shown}"
    else:
        assert fault is None
        assert grammars.accept(0, [4] * (2 - len(rest)) + [3]) is None


def test_the_marker_within_one_token_with_all_around_it() -> None:
    words = [b"so</think>4", b"2", b"<end>"]
    grammars = XGrammars(lambda: words, 3, lambda: [], [2])
    grammars.compile(AFTER)
    grammars.open(0, AFTER)
    assert grammars.accept(0, [0, 1, 2]) is None


def test_a_marker_may_overlap_what_looks_like_it() -> None:
    text = spec({"choice": ["z"], "start_after": "aab"})
    assert accepts(opened(text), text, "aaaabz")
    assert not accepts(opened(text), text, "aaaaby")


def test_an_end_token_before_the_marker_just_ends() -> None:
    grammars = opened(AFTER)
    assert grammars.accept(0, [*b"hello", EOS[0]]) is None
    assert masks_of(grammars, 0) == ONES


def test_a_choice_is_always_one_of_them_and_each_is_reached() -> None:
    choices = ["yes", "no", "y", 'é"\\\n', "日本", "yes, sir"]
    assert set(outputs({"choice": choices}, 200)) == set(choices)
    assert not fits({"choice": choices}, "yes,")
    assert not fits({"choice": choices}, "maybe")


class Processor:
    """A clock on which each token and each mask takes as long as is said, by turns: nothing by default."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.now = 0.0
        self.is_running = False

    def __call__(self) -> float:
        if self.is_running and self.seconds:
            self.now += self.seconds.pop(0)
        self.is_running = not self.is_running
        return self.now


def timed(processor: Processor, *texts: str) -> XGrammars:
    grammars = XGrammars(pieces, PADDED, lambda: SPECIAL, EOS, clock=processor, wall=processor)
    for request, text in enumerate(texts):
        grammars.compile(text)
        grammars.open(request, text)
    return grammars


LETTERS = spec({"regex": "[a-z]*"})
SLOW = "the grammar takes too long: {} ms a token; write it so that no text is derived in several ways"


@pytest.mark.parametrize(
    ("seconds", "average"), [((0.3, 0.2, 0.3, 0.3), 300), ((1.0, 0.25, 1.0), 1000), ((5.0,), 5000)]
)
def test_a_grammar_that_is_slow_for_tokens_is_given_up(seconds: tuple[float, ...], average: int) -> None:
    processor = Processor()
    grammars = timed(processor, LETTERS)
    processor.seconds = list(seconds)
    assert grammars.accept(0, b"a" * (len(seconds) - 1)) is None
    fault = grammars.accept(0, b"a")
    assert fault is not None
    assert fault.startswith(SLOW.format(average))
    assert masks_of(grammars, 0) == ONES
    assert grammars.accept(0, b"a") == fault


def test_a_grammar_that_is_never_slow_may_take_any_time_in_all() -> None:
    processor = Processor()
    grammars = timed(processor, LETTERS)
    processor.seconds = [0.25] * 100
    assert grammars.accept(0, b"a" * 100) is None


def test_an_answer_that_has_ended_was_not_too_slow() -> None:
    processor = Processor()
    grammars = timed(processor, LETTERS)
    processor.seconds = [0.0, 9.0]
    assert grammars.accept(0, [ord("a"), EOS[0]]) is None


def test_a_grammar_that_is_slow_for_masks_is_found_in_its_batch() -> None:
    processor = Processor()
    grammars = timed(processor, LETTERS, DIGITS, LETTERS)
    free, digits = masks_of(grammars, 0), masks_of(grammars, 1)
    processor.seconds = [0.06]  # the batch, which is slow, and of which nobody is accused
    assert masks_of(grammars, 0, 1, 2) == free + digits + free
    processor.seconds = [0.01, 0.9, 0.01]  # one by one
    assert masks_of(grammars, 0, 1, 2) == free + digits + free
    processor.seconds = [0.9, 0.01]  # one alone, the others as a batch
    assert masks_of(grammars, 0, 1, 2) == free + digits + free
    processor.seconds = [0.3]
    masks, faults = grammars.fill([0, 1, 2])
    assert masks == free + ONES + free
    assert list(faults) == [1]
    assert faults[1].startswith(SLOW.format(700))
    assert masks_of(grammars, 0, 1, 2) == free + ONES + free
    assert grammars.accept(1, b"1") == faults[1]
    assert not processor.seconds


@pytest.mark.slow
@pytest.mark.parametrize(
    "grammar",
    ['root ::= root root root | "a" | ""', 'root ::= x "\\x01"\nx ::= x x x | [ -~\\n] | ""'],
)
def test_an_ambiguous_grammar_is_given_up_before_it_takes_long(grammar: str) -> None:
    grammars = XGrammars(lambda: [b"a" * 60, b"<end>"], 2, lambda: [], [1])
    text = spec({"grammar": grammar})
    grammars.compile(text)
    grammars.open(0, text)
    for _ in range(20):
        fault = grammars.accept(0, [0])
        if fault is not None:
            break
    assert fault is not None
    assert fault.startswith("the grammar takes too long")
