"""Bugs to plant: a function of the production code with a piece of its text replaced, for one test."""

import inspect
import textwrap
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest


@dataclass(frozen=True)
class Bug:
    """In a method of a class, or a function as a module knows it, each key of `changes` becomes its value.

    `family` is the scenarios that show it, with these `settings`. `caught_by` is a part of what the
    simulator then says, where only one of its checks would do. `also` is planted with it: where two guard
    something, both must go.
    """

    name: str
    family: str
    home: type[Any] | ModuleType
    function: str
    changes: dict[str, str]
    caught_by: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    also: "Bug | None" = None

    def plant(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Put it in. Raises AssertionError when the text that is to be replaced is no longer there."""
        found = inspect.getattr_static(self.home, self.function)
        function: Any = found.fget if isinstance(found, property) else found
        source = textwrap.dedent(inspect.getsource(function))
        for right, wrong in self.changes.items():
            assert right in source, f"{self.name}: the code has changed; plant it anew"
            source = source.replace(right, wrong)
        names: dict[str, Any] = {}
        exec(compile(source, "<planted>", "exec"), inspect.unwrap(function).__globals__, names)
        monkeypatch.setattr(self.home, self.function, names[self.function])
        if self.also is not None:
            self.also.plant(monkeypatch)
