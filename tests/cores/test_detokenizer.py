from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorllm.cores import NEVER
from actorllm.cores.detokenizer import Detokenizer, DetokenizerStatistics
from actorllm.messages import (
    Delta,
    Ending,
    Fault,
    FromDetokenizer,
    Text,
    TextRules,
    ToDetokenizer,
    Tokens,
    Track,
    pack,
    pack_ids,
    unpack,
)

END = 300
PLAIN = TextRules()


@dataclass(frozen=True)
class Words:
    """Token ids below 256 are bytes; 256 is two words; 300 is the special end token."""

    pieces: Sequence[bytes] = (
        *(bytes([byte]) for byte in range(256)),
        b"two words",
        *[b""] * 43,
        b"<end>",
    )
    special_ids: frozenset[int] = frozenset({END})


def column(tokens: Iterable[int]) -> bytes:
    return pack(list(tokens))


def opened(*requests: int, rules: TextRules = PLAIN, tail: bytes = b"") -> Detokenizer:
    detokenizer = Detokenizer(Words())
    for request in requests:
        detokenizer.feed(Track(request, column(tail), rules))
    return detokenizer


def tokens(step: int, *pairs: tuple[int, Sequence[int]], endings: Sequence[Ending] = ()) -> Tokens:
    flat = [(request, token) for request, ids in pairs for token in ids]
    return Tokens(step, pack_ids(r for r, _ in flat), column(t for _, t in flat), tuple(endings))


def say(detokenizer: Detokenizer, *messages: Tokens) -> tuple[FromDetokenizer, ...]:
    for message in messages:
        detokenizer.feed(message)
        detokenizer.check()
    said = detokenizer.poll(0.0)
    detokenizer.check()
    return said


def test_hits_in_the_cache_go_with_the_first_delta_of_what_is_open() -> None:
    detokenizer = opened(1, 2, 3)
    say(detokenizer, tokens(1, (3, b"c"), endings=[Ending(3, "abort")]))
    told = replace(tokens(2, (1, b"a"), (2, b"b")), hits=pack_ids([2, 3]), num_cached=pack([16, 32]))
    deltas = (Delta(1, "a", column(b"a")), Delta(2, "b", column(b"b"), num_cached=16))
    assert say(detokenizer, told) == (Text(2, deltas),)


def test_tokens_become_a_text() -> None:
    detokenizer = opened(1, 2)
    said = say(detokenizer, tokens(7, (1, b"a"), (2, b"b")))
    assert said == (Text(7, (Delta(1, "a", column(b"a")), Delta(2, "b", column(b"b")))),)
    assert detokenizer.poll(1.0) == ()


def test_a_track_alone_says_nothing() -> None:
    assert opened(1).poll(0.0) == ()


def test_tokens_without_any_request_still_give_their_step() -> None:
    assert say(opened(), tokens(4)) == (Text(4, ()),)


def test_a_turn_is_one_text_with_the_highest_step_and_one_delta_a_request() -> None:
    said = say(
        opened(1, 2, 3),
        tokens(7, (2, b"a")),
        tokens(9, (1, b"x"), (2, b"bc")),
        tokens(8, (3, b"z"), (1, b"y")),
    )
    deltas = (Delta(2, "abc", column(b"abc")), Delta(1, "xy", column(b"xy")), Delta(3, "z", column(b"z")))
    assert said == (Text(9, deltas),)


def test_rows_of_one_request_may_stand_apart() -> None:
    message = Tokens(1, pack_ids([1, 2, 1]), column(b"abc"))
    assert say(opened(1, 2), message) == (
        Text(1, (Delta(1, "ac", column(b"ac")), Delta(2, "b", column(b"b")))),
    )


def test_tokens_are_reported_although_their_text_is_held_back() -> None:
    detokenizer = opened(1, rules=TextRules(stop=("stop",)))
    assert say(detokenizer, tokens(1, (1, b"\xc3"))) == (Text(1, (Delta(1, "", column(b"\xc3")),)),)
    assert say(detokenizer, tokens(2, (1, b"\xbcs"))) == (Text(2, (Delta(1, "ü", column(b"\xbcs")),)),)
    assert say(detokenizer, tokens(3, (1, b"o"))) == (Text(3, (Delta(1, "so", column(b"o")),)),)


def test_the_prompt_may_end_within_a_character() -> None:
    detokenizer = opened(1, tail="ü".encode()[:1])
    assert say(detokenizer, tokens(1, (1, b"\xbcx"))) == (Text(1, (Delta(1, "üx", column(b"\xbcx")),)),)


@pytest.mark.parametrize("reason", ["length", "abort", "error"])
def test_an_ending_flushes_what_was_held_back(reason: str) -> None:
    detokenizer = opened(1, rules=TextRules(stop=("xy",)))
    say(detokenizer, tokens(1, (1, b"ax")))
    said = say(detokenizer, tokens(2, (1, b"\xc3"), endings=[Ending(1, reason)]))
    assert said == (Text(2, (Delta(1, "x\ufffd", column(b"\xc3"), reason),)),)
    assert detokenizer.idle


def test_an_ending_without_tokens_ends() -> None:
    detokenizer = opened(1, rules=TextRules(stop=("xy",)))
    say(detokenizer, tokens(1, (1, b"ax")))
    assert say(detokenizer, tokens(2, endings=[Ending(1, "abort")])) == (
        Text(2, (Delta(1, "x", b"", "abort"),)),
    )


def test_a_fault_passes_through() -> None:
    fault = Fault("RequestFailed", "the worker crashed three times")
    said = say(opened(1), tokens(1, endings=[Ending(1, "error", fault=fault)]))
    assert said == (Text(1, (Delta(1, "", b"", "error", None, fault),)),)


def test_a_stop_token_leaves_no_text_but_its_id() -> None:
    said = say(opened(1), tokens(1, (1, b"ab!"), endings=[Ending(1, "stop", stop_token=33)]))
    assert said == (Text(1, (Delta(1, "ab", column(b"ab!"), "stop", 33),)),)


def test_a_stop_token_is_shown_on_demand() -> None:
    detokenizer = opened(1, rules=TextRules(include_stop_str_in_output=True))
    said = say(detokenizer, tokens(1, (1, b"ab!"), endings=[Ending(1, "stop", stop_token=33)]))
    assert said == (Text(1, (Delta(1, "ab!", column(b"ab!"), "stop", 33),)),)


@pytest.mark.parametrize(("skip", "text"), [(True, "a"), (False, "a<end>")])
def test_an_end_token_that_is_shown_is_hidden_as_a_special_token(skip: bool, text: str) -> None:
    rules = TextRules(include_stop_str_in_output=True, skip_special_tokens=skip)
    said = say(opened(1, rules=rules), tokens(1, (1, [97, END]), endings=[Ending(1, "stop")]))
    assert said == (Text(1, (Delta(1, text, column([97, END]), "stop"),)),)


def test_the_last_token_is_shown_when_something_else_ended_the_request() -> None:
    rules = TextRules(skip_special_tokens=False)
    said = say(opened(1, rules=rules), tokens(1, (1, [97, END]), endings=[Ending(1, "length")]))
    assert said == (Text(1, (Delta(1, "a<end>", column([97, END]), "length"),)),)


def test_a_stop_string_ends_the_request() -> None:
    detokenizer = opened(1, 2, rules=TextRules(stop=("xy",)))
    assert say(detokenizer, tokens(1, (1, b"ax"))) == (Text(1, (Delta(1, "a", column(b"ax")),)),)
    said = say(detokenizer, tokens(2, (1, b"yz"), (2, b"b")))
    deltas = (Delta(1, "", column(b"y"), "stop", "xy"), Delta(2, "b", column(b"b")))
    assert said == (Text(2, deltas),)
    assert detokenizer.statistics() == DetokenizerStatistics(
        tracked=1, tombstones=1, tokens=4, dropped=1, stop_strings=1
    )


def test_the_stop_string_is_shown_on_demand() -> None:
    rules = TextRules(stop=("o w",), include_stop_str_in_output=True)
    said = say(opened(1, rules=rules), tokens(1, (1, [256, 97])))
    assert said == (Text(1, (Delta(1, "two w", column([256]), "stop", "o w"),)),)


def test_a_tombstone_drops_late_tokens_until_the_ending() -> None:
    detokenizer = opened(1, rules=TextRules(stop=("x",)))
    assert say(detokenizer, tokens(1, (1, b"x"))) == (Text(1, (Delta(1, "", column(b"x"), "stop", "x"),)),)
    assert say(detokenizer, tokens(2, (1, b"ab"))) == (Text(2, ()),)
    assert not detokenizer.idle
    assert say(detokenizer, tokens(3, (1, b"c"), endings=[Ending(1, "abort")])) == (Text(3, ()),)
    assert detokenizer.idle
    assert detokenizer.statistics() == DetokenizerStatistics(0, 0, tokens=1, dropped=3, stop_strings=1)


def test_a_stop_string_beside_the_ending_leaves_no_tombstone() -> None:
    detokenizer = opened(1, rules=TextRules(stop=("x",)))
    said = say(detokenizer, tokens(1, (1, b"axb"), endings=[Ending(1, "length")]))
    assert said == (Text(1, (Delta(1, "a", column(b"ax"), "stop", "x"),)),)
    assert detokenizer.idle


def test_an_ending_in_the_turn_of_a_stop_string_leaves_no_tombstone() -> None:
    detokenizer = opened(1, rules=TextRules(stop=("x",)))
    said = say(detokenizer, tokens(1, (1, b"x")), tokens(2, (1, b"a"), endings=[Ending(1, "length")]))
    assert said == (Text(2, (Delta(1, "", column(b"x"), "stop", "x"),)),)
    assert detokenizer.idle


def test_flushed_text_may_complete_a_stop_string() -> None:
    detokenizer = opened(1, rules=TextRules(stop=("a\ufffd",)))
    said = say(detokenizer, tokens(1, (1, b"xa\xc3"), endings=[Ending(1, "length")]))
    assert said == (Text(1, (Delta(1, "x", column(b"xa\xc3"), "stop", "a\ufffd"),)),)


def test_the_text_of_a_hidden_stop_token_completes_no_stop_string() -> None:
    detokenizer = opened(1, rules=TextRules(stop=("ab",)))
    said = say(detokenizer, tokens(1, (1, b"ab"), endings=[Ending(1, "stop", 98)]))
    assert said == (Text(1, (Delta(1, "a", column(b"ab"), "stop", 98),)),)


def test_without_detokenizing_there_are_only_tokens() -> None:
    detokenizer = opened(1, rules=TextRules(stop=("a",), detokenize=False), tail=b"\xc3")
    assert say(detokenizer, tokens(1, (1, b"\xbca"))) == (Text(1, (Delta(1, "", column(b"\xbca")),)),)
    said = say(detokenizer, tokens(2, (1, b"b"), endings=[Ending(1, "stop", 98)]))
    assert said == (Text(2, (Delta(1, "", column(b"b"), "stop", 98),)),)


def test_a_broken_protocol_is_an_error_that_changes_nothing() -> None:
    detokenizer = opened(1)
    broken: list[tuple[ToDetokenizer, str]] = [
        (tokens(1, (1, b"a"), (2, b"a")), "for 2, which is not open"),
        (tokens(1, endings=[Ending(2, "stop")]), "for 2, which is not open"),
        (tokens(1, endings=[Ending(1, "stop"), Ending(1, "stop")]), "ended twice"),
        (Tokens(1, pack_ids([1, 1]), column([1])), "2 requests for 1 tokens"),
        (Track(1, b"", TextRules()), "1 tracked twice"),
    ]
    for message, problem in broken:
        with pytest.raises(AssertionError, match=problem):
            detokenizer.feed(message)
    assert detokenizer.poll(0.0) == ()
    detokenizer.check()
    assert detokenizer.statistics() == DetokenizerStatistics(1, 0, 0, 0, 0)


def test_an_ended_request_is_not_open() -> None:
    detokenizer = opened(1)
    say(detokenizer, tokens(1, endings=[Ending(1, "length")]))
    with pytest.raises(AssertionError, match="for 1, which is not open"):
        detokenizer.feed(tokens(2, (1, b"a")))


def test_idle_means_nothing_open_and_nothing_to_say() -> None:
    detokenizer = Detokenizer(Words())
    assert detokenizer.idle
    assert detokenizer.deadline == NEVER
    detokenizer.feed(Track(1, b"", TextRules()))
    assert not detokenizer.idle
    detokenizer.feed(tokens(1, endings=[Ending(1, "length")]))
    assert not detokenizer.idle
    detokenizer.poll(0.0)
    assert detokenizer.idle


def test_check_finds_a_request_that_is_open_beside_its_tombstone() -> None:
    detokenizer = opened(1)
    detokenizer._tombstones.add(1)
    with pytest.raises(AssertionError, match="open beside its tombstone"):
        detokenizer.check()


answers = st.lists(
    st.binary(max_size=12).map(lambda data: bytes(97 + byte % 4 for byte in data)), min_size=1, max_size=4
)


@given(answers, st.data())
def test_batches_and_turns_change_no_answer(answers: list[bytes], data: st.DataObject) -> None:
    """Each request gets the same text, tokens and end, however its tokens come in messages and turns."""
    rules = TextRules(stop=("abc", "dd"))
    detokenizer = opened(*range(len(answers)), rules=rules)
    left, open_requests, step = list(answers), set(range(len(answers))), 0
    deltas: list[Delta] = []
    while open_requests:
        step += 1
        pairs, endings = [], []
        for request in sorted(open_requests):
            count = 4 - data.draw(st.integers(0, 3))
            taken, left[request] = left[request][:count], left[request][count:]
            pairs.append((request, taken))
            if not left[request] and not data.draw(st.booleans()):
                endings.append(Ending(request, "length"))
                open_requests.remove(request)
        detokenizer.feed(tokens(step, *pairs, endings=endings))
        if data.draw(st.booleans()) or not open_requests:
            (text,) = detokenizer.poll(0.0)
            assert text.step == step
            deltas += text.deltas
        detokenizer.check()
    assert detokenizer.idle
    for request, answer in enumerate(answers):
        assert_answer(answer, [delta for delta in deltas if delta.request == request])


def assert_answer(answer: bytes, deltas: list[Delta]) -> None:
    whole = answer.decode()
    ends = [(at + len(stop), at, stop) for stop in ("abc", "dd") if (at := whole.find(stop)) >= 0]
    end, start, stop = min(ends, default=(len(whole), len(whole), None))
    assert "".join(delta.text for delta in deltas) == whole[:start]
    assert [token for delta in deltas for token in unpack(delta.tokens)] == list(answer[:end])
    assert [delta.finish_reason for delta in deltas[:-1]] == [None] * (len(deltas) - 1)
    assert (deltas[-1].finish_reason, deltas[-1].stop_reason) == ("stop" if stop else "length", stop)
