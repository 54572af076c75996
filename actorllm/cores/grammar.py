"""Grammar: gets grammars ready for the requests that are bound to one."""

from dataclasses import dataclass
from typing import assert_never

from ..messages import Compile, Drop, Fault, FromGrammar, GrammarReady, ToGrammar
from . import NEVER


@dataclass(frozen=True, slots=True)
class GrammarStatistics:
    """Counts since the start."""

    num_refused: int


class Grammar:
    """Refuses every grammar, with an error for the request that brought it."""

    def __init__(self) -> None:
        self._out: list[FromGrammar] = []
        self._refused = 0

    def feed(self, message: ToGrammar) -> None:
        """Absorb a message."""
        match message:
            case Compile(request):
                text = "structured outputs are not available; leave structured_outputs out"
                fault = Fault("InvalidRequest", text, "structured_outputs")
                self._out.append(GrammarReady(request, fault))
                self._refused += 1
            case Drop():
                pass
            case _:
                assert_never(message)

    def poll(self, now: float) -> tuple[FromGrammar, ...]:
        """The answers, in order."""
        out, self._out = tuple(self._out), []
        return out

    @property
    def deadline(self) -> float:
        """Mail alone wakes Grammar."""
        return NEVER

    @property
    def idle(self) -> bool:
        """Whether every Compile is answered."""
        return not self._out

    def check(self) -> None:
        """Nothing is kept, so nothing can be broken."""

    def statistics(self) -> GrammarStatistics:
        """Counters of this moment."""
        return GrammarStatistics(self._refused)
