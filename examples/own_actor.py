"""Two parts of your own in the ring: a policy in the Scheduler, and an actor that listens to Tokens.

Usage: python examples/own_actor.py [MODEL]
"""

import sys
from collections import Counter
from dataclasses import dataclass

import anyio

from actorllm import Engine, EngineConfig, Parts, SamplingParams, Tap
from actorllm.cores import NEVER
from actorllm.cores.policy import Policy, Rankable
from actorllm.messages import Tokens, unpack_ids


class ShortestFirst(Policy):
    """A policy: short prompts before long ones, and among equals the one that came first."""

    def key(self, request: Rankable) -> tuple[float, ...]:
        return (request.num_prompt,)


@dataclass(frozen=True)
class Counted:
    """What the counter knows."""

    steps: int
    tokens: int
    busiest: int


class TokenCounter:
    """An actor: counts tokens by request. It has an inbox of its own, and the ring never waits for it."""

    def __init__(self) -> None:
        self._tokens: Counter[int] = Counter()
        self._steps = 0

    def feed(self, message: Tokens) -> None:
        self._steps += 1
        self._tokens.update(unpack_ids(message.requests))

    def poll(self, now: float) -> tuple[()]:
        return ()

    @property
    def deadline(self) -> float:
        return NEVER

    @property
    def idle(self) -> bool:
        return True

    def check(self) -> None:
        assert self._steps >= 0

    def statistics(self) -> Counted:
        return Counted(self._steps, self._tokens.total(), max(self._tokens.values(), default=0))


async def main(model: str) -> None:
    parts = Parts(policy=ShortestFirst(), taps=(Tap(TokenCounter(), hears=(Tokens,)),))
    params = SamplingParams(max_tokens=200, ignore_eos=True, temperature=0)
    finished: list[str] = []
    async with Engine(EngineConfig(model=model, max_num_seqs=1), parts=parts) as engine:

        async def ask(prompt: str) -> None:
            await engine.generate(prompt, params)
            finished.append(prompt)

        first = engine.generate("the first takes the only seat", params)
        await anext(first)
        async with anyio.create_task_group() as nursery:
            for prompt in ("a prompt that is rather long, longer than the others", "a prompt", "a"):
                nursery.start_soon(ask, prompt)
            await first
        await engine.check()
        statistics = await engine.statistics()
    print("finished in this order:", finished)
    print("the tap heard:", statistics["tap-0"])


if __name__ == "__main__":
    anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m")
