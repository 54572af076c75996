"""What makes a class a message: frozen, slotted, and registered under a tag that never changes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar, dataclass_transform

T = TypeVar("T")

MESSAGES: dict[int, type[Any]] = {}
"""Every message class by its tag. A tag is never reused: recordings outlive versions."""


@dataclass_transform(frozen_default=True)
def message(tag: int) -> Callable[[type[T]], type[T]]:
    """Make a class a message with the wire tag `tag`.

    Fields are `int`, `float`, `bool`, `str`, `bytes`, `None`, tuples of these, and other messages.
    New fields go last and have a default, so that an old recording can still be read.
    """

    def register(cls: type[T]) -> type[T]:
        made = dataclass(frozen=True, slots=True)(cls)
        if tag in MESSAGES:
            raise TypeError(f"tag {tag} of {cls.__name__} belongs to {MESSAGES[tag].__name__}")
        MESSAGES[tag] = made
        return made

    return register
