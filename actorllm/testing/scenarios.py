"""Scenarios: how big a simulated engine is, what is asked of it, and what goes wrong."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random

from ..config import EngineConfig
from ..cores.prefix import Groups

SECOND = 1024
"""Ticks; a power of two, so that times and their sums are exact."""

LONG = 1_024_000
"""Ticks in which any grammar is compiled: more than a run has."""

LONGEST = 64
"""Tokens of a request, prompt and answer together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All that a simulation needs besides its seed. Fields without a unit are probabilities.

    name             the family that it was drawn from
    num_requests     requests asked in all
    max_model_len    tokens of a request
    block_size       tokens of a block
    num_blocks       blocks of the pool
    seats            requests that run at once (`max_num_seqs`)
    requests         requests inside at once (`max_requests`); the others wait at the door
    queued_reqs      requests that may wait (`max_num_queued_reqs`); None: all
    queued_tokens    tokens that may wait (`max_num_queued_tokens`); None: all
    policy           the order of requests
    budget           tokens of a step (`max_num_batched_tokens`)
    chunk            tokens of one request in a step; 0: no bound (`long_prefill_token_threshold`)
    steps_in_flight  1 or 2
    prefix_caching   whether there is a prefix cache
    windows          of each group of layers, how many tokens a token sees; 0: all
    watermark        share of the pool that is kept for those that run
    longest_prompt   tokens of a prompt at most
    longest_answer   tokens asked for at most
    shared           a prompt begins as another one does, or goes on with an answer
    rendered         a prompt is a text or a conversation, to be rendered on a thread
    warm             a request has a temperature
    stop             a request has stop strings
    ignore_eos       a request goes on after the end token
    bad              a prompt that must be refused
    keyed            a request shares its prefix only with some (a salt, an adapter, media)
    grammar          a request is bound to a grammar
    grammar_timeout  ticks that a request waits for its grammar (`structured_outputs_timeout`)
    longest_compile  ticks that it takes at most to compile one
    logprobs         a request wants log-probabilities, of its answer, its prompt or both
    repetition       a request ends when it repeats itself
    timeouts         a request has a timeout of each kind
    aborts           a caller cancels, at any moment
    slow             a caller reads now and then
    vanished         a caller never reads
    commands         commands that are given in the course of it (pause and resume, sleep and wake up, ...)
    shutdown         all are cancelled at once in the middle, and nobody else comes
    links            an edge that may cross processes is slow
    partial          a turn hears only a part of the mail
    codec            a message is encoded and decoded on its way
    raises           a step raises, before or after its effect on the cache
    echoes           after a failure late replies of its epoch arrive, some of them twice
    longest_job      ticks that a job takes at most
    """

    name: str = "calm"
    num_requests: int = 20
    max_model_len: int = LONGEST
    block_size: int = 4
    num_blocks: int = 96
    seats: int = 8
    requests: int = 32
    queued_reqs: int | None = None
    queued_tokens: int | None = None
    policy: str = "fcfs"
    budget: int = 32
    chunk: int = 0
    steps_in_flight: int = 2
    prefix_caching: bool = True
    windows: tuple[int, ...] = (0,)
    watermark: float = 0.0
    longest_prompt: int = 30
    longest_answer: int = 12
    shared: float = 0.5
    rendered: float = 0.15
    warm: float = 0.4
    stop: float = 0.25
    ignore_eos: float = 0.3
    bad: float = 0.05
    keyed: float = 0.0
    grammar: float = 0.05
    grammar_timeout: int = LONG
    longest_compile: int = 3
    logprobs: float = 0.15
    repetition: float = 0.05
    timeouts: float = 0.0
    aborts: float = 0.0
    slow: float = 0.0
    vanished: float = 0.0
    commands: int = 0
    shutdown: float = 0.0
    links: float = 0.3
    partial: float = 0.2
    codec: float = 0.1
    raises: float = 0.0
    echoes: float = 0.0
    longest_job: int = 3

    @property
    def limits_queue(self) -> bool:
        """Whether a request may be refused because too many wait."""
        return self.queued_reqs is not None or self.queued_tokens is not None

    @property
    def config(self) -> EngineConfig:
        """The same as an engine's configuration."""
        return EngineConfig(
            model=f"hash:{','.join(map(str, self.windows))}",
            max_model_len=self.max_model_len,
            block_size=self.block_size,
            num_gpu_blocks_override=self.num_blocks,
            enable_prefix_caching=self.prefix_caching,
            enable_kv_cache_events=True,
            watermark=self.watermark,
            max_num_batched_tokens=self.budget,
            max_num_seqs=self.seats,
            max_requests=self.requests,
            max_num_queued_reqs=self.queued_reqs,
            max_num_queued_tokens=self.queued_tokens,
            policy=self.policy,
            long_prefill_token_threshold=self.chunk,
            steps_in_flight=self.steps_in_flight,
            structured_outputs_timeout=self.grammar_timeout / SECOND,
        )


def draw(name: str, seed: int) -> Scenario:
    """The scenario number `seed` of a family. Raises KeyError for an unknown name."""
    random = Random(f"{name} {seed}")
    return replace(FAMILIES[name](random, _sizes(random)), name=name)


def pick(seed: int) -> Scenario:
    """The scenario number `seed` of the family whose turn it is: they take turns."""
    return draw(list(FAMILIES)[seed % len(FAMILIES)], seed)


WINDOWS = ((0,), (0,), (0,), (0, 5), (7,), (3, 0, 3))


def _room(windows: tuple[int, ...], block_size: int, num_tokens: int) -> int:
    """Blocks for so many tokens, if a token is seen by all; one request fits in any case."""
    groups = Groups(windows, block_size)
    share = groups.num_held(LONGEST) / groups.num_blocks(LONGEST)
    return max(int(num_tokens / block_size * share), groups.num_held(LONGEST))


def _sizes(random: Random) -> Scenario:
    """An engine with room for all, and requests of every kind."""
    block_size = random.choice((1, 2, 4, 8))
    windows = random.choice(WINDOWS)
    return Scenario(
        num_requests=random.randint(20, 26),
        block_size=block_size,
        windows=windows,
        num_blocks=_room(windows, block_size, random.randint(120, 320)),
        keyed=random.choice((0.0, 0.0, 0.3)),
        commands=random.choice((0, 0, 4)),
        seats=random.randint(1, 8),
        requests=random.choice((2, 9, 32)),
        policy=random.choice(("fcfs", "fcfs", "priority", "fair", "deadline")),
        budget=random.choice((1, 4, 8, 12, 16, 32, 64, 64)),
        chunk=random.choice((0, 0, 3, 9)),
        steps_in_flight=random.choice((1, 2, 2)),
        prefix_caching=random.random() < 0.85,
        watermark=random.choice((0.0, 0.0, 0.2)),
        codec=random.choice((0.0, 0.1, 0.1, 1.0)),
        links=random.choice((0.0, 0.3, 0.8)),
        partial=random.choice((0.0, 0.2, 0.6)),
        longest_job=random.choice((1, 3, 12)),
        grammar=random.choice((0.05, 0.3, 0.7)),
        grammar_timeout=random.choice((LONG, LONG, 20)),
        longest_compile=random.choice((1, 12, 60)),
        logprobs=random.choice((0.0, 0.2, 0.6)),
        repetition=random.choice((0.0, 0.1, 0.5)),
    )


def _calm(random: Random, sizes: Scenario) -> Scenario:
    return sizes


def _tight(random: Random, sizes: Scenario) -> Scenario:
    """Few blocks, many seats: requests are preempted, and cached blocks evicted."""
    room = random.randint(64, 90)
    return replace(
        sizes,
        num_blocks=_room(sizes.windows, sizes.block_size, room),
        seats=random.randint(4, 10),
        longest_answer=random.choice((16, 24)),
        longest_prompt=random.choice((8, 20, 40)),
        ignore_eos=0.6,
        stop=0.6,
        rendered=0.05,
        bad=0.02,
    )


def _faulty(random: Random, sizes: Scenario) -> Scenario:
    """Steps raise, and replies of ended epochs arrive late and twice."""
    return replace(sizes, raises=random.choice((0.02, 0.1, 0.4)), echoes=random.choice((0.0, 0.5, 1.0)))


def _impatient(random: Random, sizes: Scenario) -> Scenario:
    """Callers cancel at any moment, read slowly or not at all; some engines are shut down."""
    return replace(
        sizes,
        aborts=random.choice((0.2, 0.6, 1.0)),
        slow=0.3,
        vanished=0.2,
        shutdown=random.choice((0.0, 0.0, 1.0)),
        rendered=random.choice((0.1, 0.5)),
        timeouts=random.choice((0.0, 0.1, 0.4)),
        longest_compile=random.choice((12, 60, 400)),
        queued_reqs=random.choice((None, None, 4)),
        queued_tokens=random.choice((None, None, 60)),
    )


def _mixed(random: Random, sizes: Scenario) -> Scenario:
    """All of it at once."""
    impatient = _impatient(random, _faulty(random, _tight(random, sizes)))
    return replace(
        impatient,
        aborts=random.choice((0.1, 0.3, 0.6)),
        shutdown=random.choice((0.0, 0.0, 0.0, 1.0)),
        raises=random.choice((0.01, 0.05)),
    )


FAMILIES: dict[str, Callable[[Random, Scenario], Scenario]] = {
    "calm": _calm,
    "tight": _tight,
    "faulty": _faulty,
    "impatient": _impatient,
    "mixed": _mixed,
}
