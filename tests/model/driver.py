"""Drives a runner with hand-made steps."""

from collections.abc import Sequence
from typing import Protocol

from actorllm.messages import NewRow, RunStep, Sampled, Sampling, pack, pack_ids, unpack

GREEDY = Sampling(temperature=0.0)


class Device(Protocol):
    """What a runner is to its tests."""

    num_blocks: int

    def execute(self, step: RunStep) -> Sampled | None: ...


class Driver:
    """Makes RunSteps by hand. Requests get blocks from the far end of the cache, besides given ones.

    The blocks of a request are in the order of its tokens, and of each stretch one for every group.
    """

    def __init__(self, device: Device, block_size: int, num_groups: int = 1) -> None:
        self.device = device
        self.block_size = block_size
        self.num_groups = num_groups
        self.free = list(range(device.num_blocks))
        self.tokens: dict[int, list[int]] = {}
        self.computed: dict[int, int] = {}
        self.blocks: dict[int, list[int]] = {}
        self.told: dict[int, int] = {}
        self.sampling: dict[int, Sampling] = {}
        self.finished: list[int] = []
        self.unknown: set[int] = set()
        self.prompts: dict[int, int] = {}
        self.last = Sampled(b"")

    def add(
        self,
        request: int,
        prompt: Sequence[int],
        sampling: Sampling = GREEDY,
        computed: int = 0,
        blocks: Sequence[int] = (),
    ) -> None:
        """Let a request in; the first `computed` tokens of its prompt are in `blocks`."""
        self.tokens[request] = list(prompt)
        self.computed[request] = computed
        self.blocks[request] = list(blocks)
        self.told[request] = 0
        self.sampling[request] = sampling
        self.prompts.setdefault(request, len(prompt))
        self.unknown.add(request)

    def preempt(self, request: int) -> None:
        """Lose the request's KV; it begins anew with the tokens it has."""
        if request not in self.unknown:
            self.finish(request)
            self.add(request, self.tokens[request], self.sampling[request])

    def finish(self, request: int) -> None:
        self.free += [block for block in self.blocks[request] if block >= 0]
        self.finished.append(request)

    def step(self, amounts: dict[int, int | None]) -> list[int]:
        """Compute so many tokens of each request (None: all it has); returns the sampled tokens."""
        rows = [(request, self._amount(request, amount)) for request, amount in amounts.items()]
        blocks = [self._grow(request, amount) for request, amount in rows]
        samples = [self.computed[r] + amount == len(self.tokens[r]) for r, amount in rows]
        new = tuple(self._new(request) for request, _ in rows if request in self.unknown)
        run = RunStep(
            step=1,
            epoch=0,
            new=new,
            rows=pack_ids(request for request, _ in rows),
            num_tokens=pack(amount for _, amount in rows),
            samples=bytes(samples),
            num_blocks=pack(map(len, blocks)),
            blocks=pack(block for row in blocks for block in row),
            finished=pack_ids(self.finished),
        )
        self.finished = []
        self.unknown -= {request for request, _ in rows}
        done = self.device.execute(run)
        assert done is not None
        self.last = done
        sampled = unpack(done.tokens)
        tokens = iter(sampled)
        for (request, amount), draws in zip(rows, samples, strict=True):
            self.computed[request] += amount
            if draws:
                self.tokens[request].append(next(tokens))
        return sampled

    def _amount(self, request: int, amount: int | None) -> int:
        debt = len(self.tokens[request]) - self.computed[request]
        return debt if amount is None else min(amount, debt)

    def _grow(self, request: int, amount: int) -> list[int]:
        """Blocks for so many more tokens; what the device has not been told of yet, group after group."""
        table, groups = self.blocks[request], self.num_groups
        while len(table) // groups * self.block_size < self.computed[request] + amount:
            table += [self.free.pop() for _ in range(groups)]
        told, self.told[request] = self.told[request], len(table)
        return [block for group in range(groups) for block in table[told + group :: groups]]

    def _new(self, request: int) -> NewRow:
        return NewRow(
            request,
            pack(self.tokens[request]),
            self.computed[request],
            self.sampling[request],
            self.prompts[request],
        )
