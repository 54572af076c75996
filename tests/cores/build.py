"""Builders and readers of messages with packed columns; `TokenSide`, a Scheduler with its pool, for
examples; and `Ring`, the same with a device and a seed, for everything that nobody thought of."""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from random import Random

from actorllm.config import EngineConfig
from actorllm.cores.kvpool import KVPool
from actorllm.cores.policy import Fcfs, Policy
from actorllm.cores.scheduler import Scheduler
from actorllm.messages import (
    Abort,
    Advance,
    CacheEvents,
    Compile,
    Drop,
    Ending,
    Fault,
    FromScheduler,
    GrammarReady,
    Limits,
    MaskStep,
    Release,
    Reserve,
    Reserved,
    ResetPool,
    RunStep,
    SampleStep,
    Sampling,
    Seen,
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
from actorllm.model.hash import END, HashRunner, naive_tokens
from actorllm.testing.grammars import WORDS

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
    max_chunk: int = 0,
    eos: Iterable[int] = (),
    policy: Policy | None = None,
    max_num_queued_reqs: int | None = None,
    max_num_queued_tokens: int | None = None,
) -> Scheduler:
    return Scheduler(
        policy=policy or Fcfs(),
        eos_token_ids=frozenset(eos),
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        steps_in_flight=in_flight,
        step_window=window,
        max_chunk=max_chunk,
        max_num_queued_reqs=max_num_queued_reqs,
        max_num_queued_tokens=max_num_queued_tokens,
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
        mail: Sequence[ToScheduler] = messages
        while mail:
            turn = say(self.scheduler, *mail)
            said += turn
            for message in turn:
                self._hear(message)
            self.pool.check()
            mail = [message for message in self.pool.poll(0.0) if not isinstance(message, CacheEvents)]
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


class Ring:
    """Scheduler, pool and a hash model as device, joined by one queue an edge; a seed moves them.

    The model reads the KV of every token through the block tables, so that a lost, doubled, stale or
    misplaced block changes what a request gets.
    """

    def __init__(self, random: Random) -> None:
        self.random = random
        block_size = random.choice((1, 2, 4))
        num_blocks = random.randint(24 // block_size, 80 // block_size)
        config = EngineConfig(
            model="hash",
            max_model_len=200,
            block_size=block_size,
            num_gpu_blocks_override=num_blocks,
            max_num_seqs=random.randint(1, 5),
            max_num_batched_tokens=random.randint(1, 30),
            steps_in_flight=random.randint(1, 2),
        )
        self.room = num_blocks * block_size
        self.scheduler = scheduler(
            budget=config.max_num_batched_tokens,
            seqs=config.max_num_seqs,
            in_flight=config.steps_in_flight,
            window=random.randint(1, 4),
            eos=[END],
        )
        self.pool = KVPool(
            num_blocks,
            block_size,
            enable_prefix_caching=random.random() < 0.8,
            watermark=random.choice((0.0, 0.3)),
            max_chunk=random.choice((0, 3)),
        )
        self.device = HashRunner(config, 200)
        self.to_scheduler: dict[str, deque[ToScheduler]] = {
            name: deque() for name in ("text", "grammar", "pool", "device", "seen")
        }
        self.to_pool: deque[Reserve | Release | ResetPool] = deque()
        self.to_device: deque[RunStep] = deque()
        self.asked: dict[int, MaskStep] = {}
        self.epoch = 0
        self.prompts: dict[int, list[int]] = {}
        self.max_tokens: dict[int, int] = {}
        self.got: dict[int, list[int]] = {}
        self.endings: dict[int, Ending] = {}
        self.aborted: set[int] = set()
        self.guilty: set[int] = set()

    def submit(self, grammar: bool) -> None:
        """A new request; many prompts share a beginning, some end with an earlier answer."""
        request = len(self.prompts) + 1
        family = [self.random.randrange(2)] * self.random.randint(0, 12)
        earlier = self.random.choice([*self.prompts, None])
        if earlier is not None and self.random.random() < 0.3:
            family = (self.prompts[earlier] + self.got[earlier])[: self.room - 8]
        prompt = [*family, *(self.random.randrange(3) for _ in range(self.random.randint(1, 6)))]
        max_tokens = self.random.randint(1, min(12, self.room - len(prompt)))
        self.prompts[request], self.max_tokens[request], self.got[request] = prompt, max_tokens, []
        message = submit(request, prompt, max_tokens, grammar="yes" if grammar else None)
        self.to_scheduler["text"].append(message)

    def abort(self) -> None:
        if self.prompts:
            request = self.random.choice(list(self.prompts))
            self.aborted.add(request)
            self.to_scheduler["text"].append(Abort(request))

    def turn(self) -> None:
        """The Scheduler hears some of its mail and speaks."""
        for mail in self.to_scheduler.values():
            for _ in range(self.random.randint(0, len(mail))):
                self.scheduler.feed(mail.popleft())
        for message in self.scheduler.poll(0.0):
            self.route(message)
        self.scheduler.check()

    def route(self, message: FromScheduler) -> None:
        match message:
            case Reserve() | Release() | ResetPool():
                self.to_pool.append(message)
            case RunStep():
                self.to_device.append(message)
            case Compile(request):
                fault = BOOM if self.random.random() < 0.2 else None
                self.guilty |= {request} if fault else set()
                self.to_scheduler["grammar"].append(GrammarReady(request, fault))
            case Tokens(step):
                for request, token in tokens(message):
                    assert request not in self.endings
                    self.got[request].append(token)
                for ending in message.endings:
                    assert self.endings.setdefault(ending.request, ending) is ending
                if message.requests:
                    self.to_scheduler["seen"].append(Seen(step))
            case MaskStep(step):
                self.asked[step] = message
            case Drop() | Advance():
                pass

    def run_pool(self) -> None:
        if self.to_pool:
            self.pool.feed(self.to_pool.popleft())
            self.pool.check()
            said = self.pool.poll(0.0)
            self.to_scheduler["pool"].extend(each for each in said if not isinstance(each, CacheEvents))

    def run_device(self, fails: bool = False) -> None:
        """The next step is done or fails; those of an epoch that has failed are skipped."""
        while self.to_device and self.to_device[0].epoch < self.epoch:
            self.to_device.popleft()
        if not self.to_device or (self.to_device[0].waits and self.to_device[0].step not in self.asked):
            return
        step = self.to_device.popleft()
        if fails:
            self.epoch += 1
            self.device.reset()
            self.guilty.update(unpack_ids(step.rows))
            self.to_scheduler["device"].append(StepFailed(step.step, step.epoch, BOOM))
        else:
            sampled = self.device.execute(step)
            if sampled is None:
                asked = self.asked.pop(step.step)
                assert asked.epoch == step.epoch
                free = b"\xff" * 4 * WORDS * len(unpack_ids(asked.requests))
                sampled = self.device.sample(SampleStep(step.step, step.epoch, asked.requests, free))
            self.device.check()
            self.to_scheduler["device"].append(StepDone(step.step, step.epoch, sampled.tokens))

    def act(self) -> None:
        """Anything may happen."""
        actions: list[tuple[float, Callable[[], None]]] = [
            (1.0, lambda: self.submit(grammar=False)),
            (0.2, lambda: self.submit(grammar=True)),
            (0.2, self.abort),
            (0.1, lambda: self.run_device(fails=True)),
            (5.0, self.turn),
            (3.0, self.run_pool),
            (3.0, self.run_device),
        ]
        weights, choices = zip(*actions, strict=True)
        self.random.choices(choices, weights)[0]()

    def drain(self) -> int:
        """Nothing more comes in; how many rounds until all is idle."""
        for count in range(2000):
            mail = any((self.to_pool, self.to_device, *self.to_scheduler.values()))
            if not mail and self.scheduler.idle and self.pool.idle:
                return count
            self.turn()
            self.run_pool()
            self.run_device()
        raise AssertionError(f"still not idle: {self.scheduler.statistics()} {self.pool.statistics()}")

    def judge(self) -> None:
        """Each request has got just what the model says of it alone, and one ending of the right kind."""
        assert self.endings.keys() == self.prompts.keys()
        for request, prompt in self.prompts.items():
            whole = naive_tokens(prompt, self.max_tokens[request], GREEDY)
            got, reason = self.got[request], self.endings[request].finish_reason
            assert got == whole[: len(got)]
            match reason:
                case "stop":
                    assert got == whole
                    assert got[-1] == END
                case "length":
                    assert len(got) == self.max_tokens[request]
                case "abort":
                    assert request in self.aborted
                case _:
                    assert reason == "error"
                    assert request in self.guilty
