"""Builders and readers of messages with packed columns, and a Scheduler with its pool beside it."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from actorllm.cores.kvpool import KVPool
from actorllm.cores.policy import Fcfs
from actorllm.cores.scheduler import Scheduler
from actorllm.messages import (
    Ending,
    Fault,
    FromScheduler,
    Limits,
    Release,
    Reserve,
    Reserved,
    ResetPool,
    RunStep,
    Sampling,
    StepDone,
    StepFailed,
    Submit,
    Tokens,
    ToScheduler,
    pack,
    pack_ids,
    unpack,
    unpack_ids,
)

BOOM = Fault("RequestFailed", "boom")
GREEDY = Sampling(temperature=0.0, seed=0)


@dataclass(frozen=True)
class Want:
    """A line of a Reserve; `tokens` are the newly confirmed ids, and without `debt` all are wanted."""

    request: int
    tokens: Sequence[int] = ()
    debt: int | None = None
    computed: int = 0
    scheduled: int = 0


@dataclass(frozen=True)
class Grant:
    """A line of a Reserved."""

    request: int
    cached: int
    tokens: int
    blocks: list[int] = field(default_factory=list)


def reserve(
    running: Sequence[Want] = (),
    waiting: Sequence[Want] = (),
    *,
    budget: int = 1000,
    in_flight: bool = False,
    step: int = 1,
    epoch: int = 0,
) -> Reserve:
    wants = [*running, *waiting]
    return Reserve(
        step,
        epoch,
        budget,
        len(running),
        not in_flight,
        pack_ids(want.request for want in wants),
        pack(want.computed for want in wants),
        pack(want.scheduled for want in wants),
        pack(len(want.tokens) if want.debt is None else want.debt for want in wants),
        pack(len(want.tokens) for want in wants),
        pack(token for want in wants for token in want.tokens),
    )


def wants(message: Reserve) -> list[Want]:
    """The lines of a Reserve."""
    counts, at, lines = unpack(message.num_tokens), 0, []
    columns = (message.num_computed, message.num_scheduled, message.debts)
    for request, computed, scheduled, debt, count in zip(
        unpack_ids(message.requests), *map(unpack, columns), counts, strict=True
    ):
        told = unpack(message.tokens)[at : at + count]
        at += count
        lines.append(Want(request, told, debt, computed, scheduled))
    return lines


def reserved(
    to: Reserve,
    *grants: Grant,
    preempted: Sequence[int] = (),
    refused: Sequence[int] = (),
) -> Reserved:
    """The answer to this Reserve."""
    return Reserved(
        to.step,
        to.epoch,
        pack_ids(grant.request for grant in grants),
        pack(grant.cached for grant in grants),
        pack(grant.tokens for grant in grants),
        pack(len(grant.blocks) for grant in grants),
        pack(block for grant in grants for block in grant.blocks),
        pack_ids(preempted),
        pack_ids(refused),
    )


def grants(message: Reserved) -> list[Grant]:
    """The lines of a Reserved."""
    columns = (message.num_cached, message.num_tokens)
    tables = split(unpack(message.blocks), unpack(message.num_blocks))
    return [
        Grant(request, cached, tokens, table)
        for request, cached, tokens, table in zip(
            unpack_ids(message.requests), *map(unpack, columns), tables, strict=True
        )
    ]


def release(request: int, computed: int, tokens: Sequence[int] = ()) -> Release:
    return Release(pack_ids([request]), pack([computed]), pack([len(tokens)]), pack(tokens))


def submit(
    request: int, prompt: Sequence[int], max_tokens: int = 4, *, grammar: str | None = None, stop: int = -1
) -> Submit:
    """A Submit; `stop` is a stop token id, -1 for none."""
    limits = Limits(max_tokens, (stop,) if stop >= 0 else (), grammar=grammar)
    return Submit(request, pack(prompt), GREEDY, limits)


def tokens(message: Tokens) -> list[tuple[int, int]]:
    """(request, token) of a Tokens, in order."""
    return list(zip(unpack_ids(message.requests), unpack(message.tokens), strict=True))


def rows(step: RunStep) -> list[tuple[int, int, int]]:
    """(request, number of tokens, samples) of a step."""
    return list(zip(unpack_ids(step.rows), unpack(step.num_tokens), step.samples, strict=True))


def split(column: list[int], counts: Iterable[int]) -> list[list[int]]:
    """The column cut into pieces of these lengths."""
    pieces, at = [], 0
    for count in counts:
        pieces.append(column[at : at + count])
        at += count
    return pieces


def scheduler(
    *,
    budget: int = 1000,
    seqs: int = 8,
    in_flight: int = 1,
    window: int = 100,
    eos: Iterable[int] = (),
) -> Scheduler:
    return Scheduler(
        policy=Fcfs(),
        eos_token_ids=frozenset(eos),
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        steps_in_flight=in_flight,
        step_window=window,
    )


def say(core: Scheduler, *messages: ToScheduler) -> tuple[FromScheduler, ...]:
    """Feed all in one turn, and check."""
    for message in messages:
        core.feed(message)
    out = core.poll(0.0)
    core.check()
    return out


class TokenSide:
    """A Scheduler and its pool, which answers at once; a test plays the workers.

    `out` are the steps that the workers have and have not answered, `steps` all that there were, and
    `told` and `endings` what the Detokenizer has heard.
    """

    def __init__(self, scheduler: Scheduler, pool: KVPool) -> None:
        self.scheduler = scheduler
        self.pool = pool
        self.out: deque[RunStep] = deque()
        self.steps: list[RunStep] = []
        self.told: list[tuple[int, int]] = []
        self.endings: list[Ending] = []

    def feed(self, *messages: ToScheduler) -> list[FromScheduler]:
        """One turn with these messages, then turns until the pool has nothing to answer."""
        said: list[FromScheduler] = []
        mail: tuple[ToScheduler, ...] = messages
        while mail:
            turn = say(self.scheduler, *mail)
            said += turn
            for message in turn:
                self._hear(message)
            self.pool.check()
            mail = self.pool.poll(0.0)
        return said

    def _hear(self, message: FromScheduler) -> None:
        match message:
            case Reserve() | Release() | ResetPool():
                self.pool.feed(message)
            case RunStep():
                self.out.append(message)
                self.steps.append(message)
            case Tokens():
                self.told += tokens(message)
                self.endings += message.endings
            case _:
                pass

    def done(self, *sampled: int) -> list[FromScheduler]:
        """The oldest step is done and brought these tokens."""
        step = self.out.popleft()
        return self.feed(StepDone(step.step, step.epoch, pack(sampled)))

    def fail(self) -> list[FromScheduler]:
        """The oldest step has raised, so that no later one of its epoch will be done."""
        step = self.out.popleft()
        self.out.clear()
        return self.feed(StepFailed(step.step, step.epoch, BOOM))

    @property
    def planned(self) -> list[tuple[int, int, int]]:
        """The rows of the newest step."""
        return rows(self.steps[-1])
