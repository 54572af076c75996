"""Log-probabilities in JSON, in the shapes of OpenAI and vLLM. Every number is finite, as they come so."""

from collections.abc import Iterable, Sequence
from typing import Any

from ..cores.text import Decoder
from ..engine.logprobs import Logprob, Position

Json = dict[str, Any]


class Teller:
    """How the log-probabilities of one request are written.

    most     of each token so many of the likeliest are listed; -1: all that are there
    lists_all  also those that the request has asked for by their ids
    as_ids   tokens are written `token_id:5`
    """

    def __init__(self, most: int, lists_all: bool = False, as_ids: bool = False) -> None:
        self._most = -1 if lists_all else most
        self._as_ids = as_ids

    def chat(self, positions: Iterable[Position]) -> Json:
        """The tokens of a conversation's answer: `bytes` are a token's own, also of a part of a character."""
        content = []
        for position in positions:
            token, candidate = next(iter(position.items()))
            listed = [self._entry(*each) for each in likeliest(position, self._most)]
            content.append(self._entry(token, candidate) | {"top_logprobs": listed})
        return {"content": content, "refusal": None}

    def completion(self, positions: Sequence[Position], offsets: Sequence[int]) -> Json:
        """The tokens of a completion, and where in its text each begins.

        Each lists itself and the likeliest by their texts; of several with one text, the first.
        """
        told: Json = {"text_offset": list(offsets), "token_logprobs": [], "tokens": [], "top_logprobs": []}
        for position in positions:
            token, candidate = next(iter(position.items()))
            listed: dict[str, float] = {}
            for each in ((token, candidate), *likeliest(position, self._most)):
                listed.setdefault(self._name(*each), each[1].logprob)
            told["token_logprobs"].append(candidate.logprob)
            told["tokens"].append(self._name(token, candidate))
            told["top_logprobs"].append(listed)
        return told

    def prompt(
        self, first: tuple[int, bytes], positions: Sequence[Position | None], offsets: Sequence[int]
    ) -> Json:
        """The same for a prompt. Of its first token only the name is told: nothing comes before it."""
        token, piece = first
        told = self.completion([each for each in positions if each is not None], offsets)
        told["token_logprobs"].insert(0, None)
        told["tokens"].insert(0, self._name(token, Logprob(0.0, 1, piece)))
        told["top_logprobs"].insert(0, None)
        return told

    def _entry(self, token: int, candidate: Logprob) -> Json:
        name = self._name(token, candidate)
        return {"token": name, "logprob": candidate.logprob, "bytes": list(candidate.piece)}

    def _name(self, token: int, candidate: Logprob) -> str:
        return f"token_id:{token}" if self._as_ids else candidate.decoded_token


class Offsets:
    """Where in its text each token of an answer begins: behind the characters that were certain before it.

    `start` is where the answer begins, behind the tokens of its prompt. Without a decoder it has no text.
    """

    def __init__(self, decoder: Decoder | None, start: int) -> None:
        self._decoder = decoder
        self._next = start

    def take(self, tokens: Iterable[int]) -> list[int]:
        """The offsets of the next tokens."""
        return [self._step(token) for token in tokens]

    def _step(self, token: int) -> int:
        here = self._next
        if self._decoder is not None:
            self._next += len(self._decoder.feed((token,)))
        return here


class Echo:
    """The text of a prompt, as it is put before its answers, and where in it each of its tokens begins."""

    def __init__(self, decoder: Decoder, tokens: Sequence[int], text: str | None) -> None:
        """`text` is the prompt as it was given, None when it was tokens or not all of it was taken."""
        parts = [decoder.feed((token,)) for token in tokens]
        whole = "".join(parts) + decoder.finish()
        self.text = whole if text is None else text
        self._parts = parts
        self._more = max(0, len(whole) - len(self.text))

    def offsets(self) -> list[int]:
        """Of each token. What the tokenizer puts before a text, such as a space, is not in it."""
        found, end = [], 0
        for part in self._parts:
            found.append(max(0, end - self._more))
            end += len(part)
        return found


def likeliest(position: Position, most: int) -> list[tuple[int, Logprob]]:
    """So many of the candidates (-1: all), the likeliest first; the lower id first of equals."""
    found = sorted(position.items(), key=lambda each: (each[1].rank, each[0]))
    return found if most < 0 else found[:most]


def prompt_logprobs(positions: Sequence[Position | None], most: int) -> list[Json | None]:
    """The log-probabilities of a prompt, in vLLM's shape: each token and `most` of the likeliest."""
    return [None if position is None else _by_token(position, most) for position in positions]


def _by_token(position: Position, most: int) -> Json:
    own = next(iter(position))
    return {
        str(token): {
            "logprob": candidate.logprob,
            "rank": candidate.rank,
            "decoded_token": candidate.decoded_token,
        }
        for token, candidate in ({own: position[own]} | dict(likeliest(position, most))).items()
    }
