"""Log-probabilities go with the tokens that are shown; stop strings are looked for behind min_tokens."""

import struct
from collections.abc import Sequence

from actorllm.messages import Delta, Ending, Logprobs, PromptLogprobs, Text, TextRules, Tokens, pack, pack_ids

from .test_detokenizer import opened, say


def logprobs(tokens: Sequence[int | None]) -> Logprobs:
    """One candidate for each token, None where none is wanted; its value is the token's negative."""
    some = [token for token in tokens if token is not None]
    values = struct.pack(f"<{len(some)}f", *(-token for token in some))
    return Logprobs(
        pack(int(token is not None) for token in tokens), pack(some), values, pack([1] * len(some))
    )


def told(step: int, *pairs: tuple[int, int], asked: Sequence[int], endings: Sequence[Ending] = ()) -> Tokens:
    """Tokens, with the log-probabilities of those of the requests that asked."""
    found = logprobs([token if request in asked else None for request, token in pairs])
    requests, tokens = zip(*pairs, strict=True)
    return Tokens(step, pack_ids(requests), pack(tokens), tuple(endings), found)


def test_each_request_gets_its_own() -> None:
    detokenizer = opened(1, 2, 3)
    said = say(detokenizer, told(1, (1, 97), (2, 98), (3, 99), (1, 100), asked=(1, 3)))
    assert said == (
        Text(
            1,
            (
                Delta(1, "ad", pack([97, 100]), logprobs=logprobs([97, 100])),
                Delta(2, "b", pack([98])),
                Delta(3, "c", pack([99]), logprobs=logprobs([99])),
            ),
        ),
    )


def test_those_of_several_steps_stand_one_after_the_other() -> None:
    detokenizer = opened(1)
    said = say(detokenizer, told(1, (1, 97), asked=(1,)), told(2, (1, 98), asked=(1,)))
    assert said == (Text(2, (Delta(1, "ab", pack([97, 98]), logprobs=logprobs([97, 98])),)),)


def test_a_stop_string_cuts_them_where_it_cuts_the_tokens() -> None:
    detokenizer = opened(1, rules=TextRules(stop=("bc",)))
    pairs = [(1, token) for token in b"abcde"]
    said = say(detokenizer, told(1, *pairs, asked=(1,)))
    assert said == (Text(1, (Delta(1, "a", pack(b"abc"), "stop", "bc", None, logprobs(list(b"abc"))),)),)
    assert say(detokenizer, told(2, (1, 102), asked=(1,), endings=[Ending(1, "abort")])) == (Text(2, ()),)
    assert detokenizer.idle


def test_those_of_a_prompt_come_without_tokens_and_together() -> None:
    detokenizer = opened(1, 2)
    first, second = logprobs([5, 6]), logprobs([7])
    parts = [
        Tokens(step, b"", b"", (), None, (PromptLogprobs(1, at, part),))
        for step, at, part in ((1, 1, first), (2, 3, second))
    ]
    said = say(detokenizer, *parts)
    assert said == (Text(2, (Delta(1, "", b"", prompt_logprobs=(first, second)),)),)


def test_those_of_a_prompt_whose_text_has_ended_are_dropped() -> None:
    detokenizer = opened(1, rules=TextRules(stop=("a",)))
    say(detokenizer, told(1, (1, 97), asked=()))
    late = Tokens(2, b"", b"", (), None, (PromptLogprobs(1, 1, logprobs([5])),))
    assert say(detokenizer, late) == (Text(2, ()),)


def test_stop_strings_are_looked_for_behind_the_first_tokens() -> None:
    detokenizer = opened(1, rules=TextRules(stop=("ab",), min_tokens=3))
    plain = [(1, token) for token in b"abab"]
    assert say(detokenizer, told(1, *plain, asked=())) == (Text(1, (Delta(1, "abab", pack(b"abab")),)),)
    said = say(detokenizer, told(2, (1, 97), (1, 98), asked=()))
    assert said == (Text(2, (Delta(1, "", pack(b"ab"), "stop", "ab"),)),)
