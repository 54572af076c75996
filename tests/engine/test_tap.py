"""Taps hear what is put into inboxes, lose what they have no room for, and die alone."""

from typing import Any

import pytest

from actorllm import ConfigError, Engine, Parts, SamplingParams, Tap
from actorllm.messages import Cancel, Delta, Generate, JobDone, RunStep, Seen, Tokens

from .build import config, expected, prompts

pytestmark = pytest.mark.anyio

PROMPT = prompts(1)[0]
PARAMS = SamplingParams(max_tokens=30, temperature=0, ignore_eos=True)


class Ear:
    """Notes what it hears; says it back; breaks at a kind."""

    deadline = float("inf")
    idle = True

    def __init__(self, breaks_at: type[Any] | None = None) -> None:
        self.heard: list[Any] = []
        self._new: list[Any] = []
        self._breaks_at = breaks_at

    def feed(self, message: Any) -> None:
        if type(message) is self._breaks_at:
            raise ZeroDivisionError("too loud")
        self.heard.append(message)
        self._new.append(message)

    def poll(self, now: float) -> tuple[Any, ...]:
        new, self._new = tuple(self._new), []
        return new

    def check(self) -> None:
        assert len(self._new) <= len(self.heard)

    def statistics(self) -> Any:
        return config()


async def ask(*taps: Tap) -> dict[str, Any]:
    async with Engine(config(), parts=Parts(taps=taps)) as engine:
        assert list((await engine.generate(PROMPT, PARAMS)).token_ids) == expected(PROMPT, PARAMS)
        await engine.check()
        return await engine.statistics()


async def test_a_tap_hears_every_inbox_and_what_it_says_is_taken() -> None:
    ear = Ear()
    said: list[Any] = []
    await ask(Tap(ear, (Generate, Tokens, RunStep, JobDone, Seen), says=said.append))
    kinds = [type(message) for message in ear.heard]
    assert kinds.count(Generate) == 1
    assert kinds.count(RunStep) == 2 * kinds.count(JobDone) > 0
    assert kinds.count(Tokens) > 0
    assert kinds.count(Seen) > 0
    assert said == ear.heard


async def test_a_tap_hears_nothing_else() -> None:
    ear = Ear()
    await ask(Tap(ear, (Cancel,)))
    assert ear.heard == []


async def test_a_tap_without_room_loses_mail_and_stops_nobody() -> None:
    ear = Ear()
    statistics = await ask(Tap(ear, (RunStep, JobDone, Tokens, Seen), capacity=1))
    total = len(ear.heard) + statistics["tap-0"]["lost"]
    assert total > 30


async def test_a_tap_that_breaks_dies_alone() -> None:
    ear, other = Ear(breaks_at=RunStep), Ear()
    statistics = await ask(Tap(ear, (Generate, RunStep)), Tap(other, (RunStep,)))
    assert statistics["tap-0"]["died"] == "ZeroDivisionError: too loud"
    assert statistics["tap-1"]["died"] is None
    assert len(other.heard) > 0


def test_what_no_actor_gets_cannot_be_heard() -> None:
    with pytest.raises(ConfigError, match="a tap cannot hear Delta: no actor gets it"):
        Tap(Ear(), (Delta,))
