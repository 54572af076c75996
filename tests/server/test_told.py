"""Log-probabilities in JSON: which are listed, how they are named, and where tokens begin in a text."""

from collections.abc import Sequence
from dataclasses import dataclass

from actorllm import Logprob
from actorllm.cores.text import Decoder
from actorllm.server.told import Echo, Offsets, Teller, prompt_logprobs

DRAWN = {
    7: Logprob(-3.0, 3, b"dr"),
    1: Logprob(-1.0, 1, b"\xc3"),
    2: Logprob(-2.0, 2, b"\xa9"),
    9: Logprob(-9999.0, 40, b"far"),
}
"""A token, the two likeliest, and one that was asked for."""


@dataclass(frozen=True)
class Vocabulary:
    pieces: Sequence[bytes]
    special_ids: frozenset[int] = frozenset()


def test_a_chat_lists_the_likeliest_in_their_order() -> None:
    (entry,) = Teller(2).chat([DRAWN])["content"]
    assert (entry["token"], entry["logprob"], entry["bytes"]) == ("dr", -3.0, [*b"dr"])
    assert entry["top_logprobs"] == [
        {"token": "\ufffd", "logprob": -1.0, "bytes": [0xC3]},
        {"token": "\ufffd", "logprob": -2.0, "bytes": [0xA9]},
    ]
    assert Teller(0).chat([DRAWN])["content"][0]["top_logprobs"] == []
    assert Teller(2).chat([])["content"] == []


def test_the_token_itself_is_listed_where_it_belongs() -> None:
    drawn = {5: Logprob(-1.0, 1, b"b"), 4: Logprob(-1.0, 1, b"a"), 6: Logprob(-2.0, 3, b"c")}
    (entry,) = Teller(2).chat([drawn])["content"]
    assert [each["token"] for each in entry["top_logprobs"]] == ["a", "b"]


def test_tokens_that_were_asked_for_are_all_listed() -> None:
    (entry,) = Teller(0, lists_all=True).chat([DRAWN])["content"]
    assert [each["bytes"] for each in entry["top_logprobs"]] == [[0xC3], [0xA9], [*b"dr"], [*b"far"]]
    assert entry["top_logprobs"][-1]["logprob"] == -9999.0
    assert [
        each["token"] for each in Teller(-1, as_ids=True).chat([DRAWN])["content"][0]["top_logprobs"]
    ] == [
        "token_id:1",
        "token_id:2",
        "token_id:7",
        "token_id:9",
    ]


def test_a_completion_lists_texts_the_first_of_equal_ones() -> None:
    assert Teller(2).completion([DRAWN, DRAWN], [0, 2]) == {
        "text_offset": [0, 2],
        "token_logprobs": [-3.0, -3.0],
        "tokens": ["dr", "dr"],
        "top_logprobs": [{"dr": -3.0, "\ufffd": -1.0}] * 2,
    }
    ids = Teller(2, as_ids=True).completion([DRAWN], [0])
    assert ids["top_logprobs"] == [{"token_id:7": -3.0, "token_id:1": -1.0, "token_id:2": -2.0}]
    assert ids["tokens"] == ["token_id:7"]


def test_nothing_is_told_of_what_stands_first_in_a_prompt() -> None:
    told = Teller(1).prompt((8, b"b"), [None, DRAWN], [0, 1])
    assert told == {
        "text_offset": [0, 1],
        "token_logprobs": [None, -3.0],
        "tokens": ["b", "dr"],
        "top_logprobs": [None, {"dr": -3.0, "\ufffd": -1.0}],
    }


def test_a_prompt_lists_each_token_and_so_many_of_the_likeliest() -> None:
    assert prompt_logprobs([None, {9: Logprob(-9999.0, 40, b"far")}], 0) == [
        None,
        {"9": {"logprob": -9999.0, "rank": 40, "decoded_token": "far"}},
    ]
    for most, listed in ((0, "7"), (1, "71"), (2, "712"), (3, "712"), (-1, "7129")):
        (position,) = prompt_logprobs([DRAWN], most)
        assert position is not None
        assert "".join(position) == listed


def test_a_token_begins_behind_what_is_certain() -> None:
    vocabulary = Vocabulary([b"ab", b"\xc3", b"\xa9", b"<end>", b"c"], frozenset({3}))
    offsets = Offsets(Decoder(vocabulary, (), skip_special_tokens=True), 10)
    assert offsets.take([0, 1]) == [10, 12]
    assert offsets.take([2, 3, 4]) == [12, 13, 13]


def test_all_tokens_of_an_answer_without_text_begin_where_it_does() -> None:
    offsets = Offsets(None, 10)
    assert offsets.take([0, 1]) == [10, 10]
    assert offsets.take([2]) == [10]


def test_an_echo_is_the_prompt_as_it_was_given() -> None:
    vocabulary = Vocabulary([b"<s>", b" ab", b"c"], frozenset({0}))

    def echo(text: str | None) -> Echo:
        return Echo(Decoder(vocabulary, (), skip_special_tokens=True), [0, 1, 2], text)

    assert echo("abc").text == "abc"
    assert echo("abc").offsets() == [0, 0, 2]
    assert echo(None).text == " abc"
    assert echo(None).offsets() == [0, 0, 3]
