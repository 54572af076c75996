"""Answers by hand: what is made of them, however they are cut."""

import random

import pytest

from .samples import HERMES, IN_REASONING, LLAMA, MISTRAL, PYTHONIC, REASONING, Sample
from .told import Told, cut, parsed

Case = tuple[str, str | None, str | None, bool, Told]

SETS: dict[str, tuple[list[Sample], str | None, str | None, bool]] = {
    "hermes": (HERMES, "hermes", None, False),
    "llama3_json": (LLAMA, "llama3_json", None, False),
    "mistral": (MISTRAL, "mistral", None, False),
    "mistral_args": (MISTRAL, "mistral_args", None, False),
    "pythonic": (PYTHONIC, "pythonic", None, False),
    "reasoning": (REASONING, "hermes", "think", False),
    "in reasoning": (IN_REASONING, "hermes", "think", True),
    "no reasoning": (HERMES, "hermes", "think", False),
}

CASES = [
    pytest.param(text, tools, reasoning, begun, expected, id=f"{name} {number}")
    for name, (samples, tools, reasoning, begun) in SETS.items()
    for number, (text, expected) in enumerate(samples)
]

NUM_CUTS = 1000


@pytest.mark.parametrize(("text", "tools", "reasoning", "begun", "expected"), CASES)
def test_a_sample(text: str, tools: str, reasoning: str | None, begun: bool, expected: Told) -> None:
    assert parsed([text], tools, reasoning, in_reasoning=begun) == expected


@pytest.mark.slow
@pytest.mark.parametrize(("text", "tools", "reasoning", "begun", "expected"), CASES)
def test_a_sample_in_pieces(
    text: str, tools: str, reasoning: str | None, begun: bool, expected: Told
) -> None:
    draw = random.Random(text)
    cuts = [[place] for place in range(len(text) + 1)]
    cuts += [draw.choices(range(len(text) + 1), k=draw.randint(2, 12)) for _ in range(NUM_CUTS)]
    cuts.append(list(range(len(text))))
    for places in cuts:
        pieces = cut(text, places)
        assert parsed(pieces, tools, reasoning, in_reasoning=begun) == expected, pieces


@pytest.mark.parametrize(("tools", "samples"), [("llama3_json", LLAMA), ("pythonic", PYTHONIC)])
def test_the_whole_answer_comes_behind_the_reasoning(tools: str, samples: list[Sample]) -> None:
    for text, _ in samples:
        assert parsed([f"<think>a</think>\n{text}"], tools, "think")[1:] == parsed([text.lstrip()], tools)
