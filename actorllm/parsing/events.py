"""What an answer is made of, in the order in which it comes."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Content:
    """The next piece of what is said to the user."""

    text: str


@dataclass(frozen=True, slots=True)
class Reasoning:
    """The next piece of what the model thinks before it answers."""

    text: str


@dataclass(frozen=True, slots=True)
class CallBegun:
    """A tool is called. Calls are numbered from 0 and never overlap."""

    index: int
    name: str


@dataclass(frozen=True, slots=True)
class CallArguments:
    """The next piece of the JSON text of a call's arguments."""

    index: int
    text: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """No more arguments of this call will come."""

    index: int


Event = Content | Reasoning | CallBegun | CallArguments | CallEnded
