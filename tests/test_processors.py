"""Custom processors, by their names."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from actorllm.errors import ConfigError
from actorllm.processors import load_processors


class Uneven:
    """Forbids the tokens with even ids."""

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size

    def check(self, arguments: Mapping[str, Any], /) -> None: ...

    def open(self, arguments: Mapping[str, Any], prompt: NDArray[np.int32], /) -> bool:
        return True

    def advance(self, state: bool, token: int, /) -> None: ...

    def apply(self, logits: NDArray[np.float32], states: Sequence[bool], /) -> None:
        logits[:, ::2] = -np.inf


class Unwilling(Uneven):
    def __init__(self, vocab_size: int) -> None:
        raise RuntimeError(f"not {vocab_size}")


def test_processors_are_made_in_order_with_the_size_of_the_vocabulary() -> None:
    name = f"{__name__}:Uneven"
    first, second = load_processors([name, name], 77)
    assert first is not second
    assert isinstance(first, Uneven)
    assert first.vocab_size == 77
    assert load_processors([], 77) == ()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Uneven", "must be named like package.module:Class"),
        ("tests.test_processors:", "must be named like"),
        (":Uneven", "must be named like"),
        ("tests.nowhere:Uneven", "No module named 'tests.nowhere'"),
        (f"{__name__}:Odd", "no attribute 'Odd'"),
        (f"{__name__}:Unwilling", "RuntimeError.'not 77'"),
        ("builtins:int", "lacks one of check, open, advance and apply"),
    ],
)
def test_what_is_no_processor_is_named(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=f"logits processor '{name}'.*{message}"):
        load_processors([f"{__name__}:Uneven", name], 77)
