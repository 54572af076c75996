"""Reading numbers out of configurations that somebody else wrote, with errors that name file and field."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ..errors import ModelCorrupt

_MISSING = object()


class Fields:
    """A view of key-value settings. Its methods raise ModelCorrupt for what is missing or of the wrong type.

    source  how messages name the file
    get     looks up a key; None means that it is not there
    """

    def __init__(self, source: object, get: Callable[[str], Any]) -> None:
        self.source = source
        self._get = get

    def raw(self, key: str) -> Any:
        """The value as it stands; None if there is none."""
        return self._get(key)

    def integer(self, key: str, default: Any = _MISSING) -> int:
        """An integer of at least 1 (any number without a fraction will do)."""
        value = self._number(key, default)
        if value != int(value) or value < 1:
            raise ModelCorrupt(f"{self.source}: {key} must be a positive integer, not {value!r}")
        return int(value)

    def number(self, key: str, default: Any = _MISSING) -> float:
        """A finite number."""
        return float(self._number(key, default))

    def flag(self, key: str, default: bool) -> bool:
        """True or false."""
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ModelCorrupt(f"{self.source}: {key} must be true or false, not {value!r}")
        return value

    def text(self, key: str) -> str | None:
        """A text; None if the key is missing."""
        value = self._get(key)
        if value is not None and not isinstance(value, str):
            raise ModelCorrupt(f"{self.source}: {key} must be a text")
        return value

    def texts(self, key: str) -> list[str]:
        """One of GGUF's arrays of strings; empty if the key is missing."""
        value = self._get(key)
        if value is not None and not isinstance(value, list):
            raise ModelCorrupt(f"{self.source}: {key} must be a list of texts")
        return value or []

    def numbers(self, key: str) -> list[Any] | None:
        """The numbers of one of GGUF's arrays; None if the key is missing."""
        value = self._get(key)
        if value is not None and not isinstance(value, np.ndarray):
            raise ModelCorrupt(f"{self.source}: {key} must be a list of numbers")
        return None if value is None else value.tolist()

    def mapping(self, key: str) -> Mapping[str, Any]:
        """A JSON object; an empty one if the key is missing."""
        value = self._get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            raise ModelCorrupt(f"{self.source}: {key} must be an object, not {value!r}")
        return value

    def ids(self, key: str) -> frozenset[int]:
        """A token id or a list of them; empty if the key is missing."""
        value = self._get(key)
        values = [] if value is None else value if isinstance(value, list) else [value]
        if any(isinstance(item, bool) or not isinstance(item, int) or item < 0 for item in values):
            raise ModelCorrupt(f"{self.source}: {key} must be token ids, not {value!r}")
        return frozenset(values)

    def _number(self, key: str, default: Any) -> float:
        value = self._get(key)
        if value is None:
            value = default
        if value is _MISSING:
            raise ModelCorrupt(f"{self.source}: {key} is missing")
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < float("inf"):
            raise ModelCorrupt(f"{self.source}: {key} must be a number, not {value!r}")
        return value
