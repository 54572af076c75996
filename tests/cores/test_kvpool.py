from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from actorllm.cores import NEVER
from actorllm.cores.kvpool import KVPool
from actorllm.messages import (
    CacheEvents,
    CacheKey,
    Keyed,
    PoolReset,
    Reserve,
    Reserved,
    ResetPool,
    ResetPrefixCache,
    unpack_ids,
)
from actorllm.testing.tables import Mirror
from tests.cores.build import Grant, Want, grants, release, reserve


def ask(pool: KVPool, message: Reserve) -> Reserved:
    pool.feed(message)
    (answer,) = [said for said in pool.poll(0.0) if isinstance(said, Reserved)]
    pool.check()
    return answer


def lines(pool: KVPool, message: Reserve) -> list[Grant]:
    return grants(ask(pool, message))


def released(pool: KVPool, request: int, prompt: Sequence[int], computed: int) -> None:
    """Admit this prompt in one step, and end it when `computed` tokens are."""
    ask(pool, reserve(waiting=[Want(request, prompt)]))
    pool.feed(release(request, computed))


def test_a_prompt_gets_all_its_blocks() -> None:
    pool = KVPool(8, 4)
    assert lines(pool, reserve(waiting=[Want(1, range(9))])) == [Grant(1, 0, 9, [0, 1, 2])]
    assert pool.statistics().num_free_blocks == 5
    assert pool.deadline == NEVER


def test_the_budget_is_spent_in_order_and_max_chunk_bounds_each() -> None:
    pool = KVPool(100, 16, max_chunk=400)
    waiting = [Want(1, [1] * 800), Want(2, [2] * 800), Want(3, [3] * 800), Want(4, [4] * 800)]
    granted = lines(pool, reserve(waiting=waiting, budget=1024))
    assert [(grant.request, grant.tokens, len(grant.blocks)) for grant in granted] == [
        (1, 400, 25),
        (2, 400, 25),
        (3, 224, 14),
    ]


def test_a_running_request_gets_a_block_only_when_its_last_is_full() -> None:
    pool = KVPool(4, 4)
    ask(pool, reserve(waiting=[Want(1, [1, 2, 3])]))
    assert lines(pool, reserve([Want(1, [4], 1, 3, 3)])) == [Grant(1, 0, 1)]
    assert lines(pool, reserve([Want(1, [5], 1, 4, 4)])) == [Grant(1, 0, 1, [1])]


def test_running_requests_are_served_before_waiting_ones() -> None:
    pool = KVPool(8, 4)
    ask(pool, reserve(waiting=[Want(5, [1, 2])]))
    mixed = reserve([Want(5, [3], 1, 2, 2)], [Want(1, [7, 8, 9])], budget=3)
    assert lines(pool, mixed) == [Grant(5, 0, 1), Grant(1, 0, 2, [1])]


def test_a_prompt_hits_the_full_blocks_of_an_equal_prefix() -> None:
    pool = KVPool(8, 4)
    released(pool, 1, range(10), 10)
    assert lines(pool, reserve(waiting=[Want(2, [*range(8), 99, 98])])) == [Grant(2, 8, 2, [0, 1, 2])]
    assert (pool.statistics().queried_tokens, pool.statistics().hit_tokens) == (20, 8)


@pytest.mark.parametrize(("length", "cached"), [(4, 0), (5, 4), (8, 4), (9, 8), (12, 8), (13, 12)])
def test_one_token_at_least_is_computed(length: int, cached: int) -> None:
    pool = KVPool(8, 4)
    released(pool, 1, range(12), 12)
    (grant,) = lines(pool, reserve(waiting=[Want(2, range(length))]))
    assert (grant.cached, grant.tokens) == (cached, length - cached)


def test_a_request_that_skips_the_cache_computes_all_and_others_hit_what_it_left() -> None:
    pool = KVPool(16, 4)
    released(pool, 1, range(10), 10)
    skips = replace(reserve(waiting=[Want(2, range(10))]), keys=(Keyed(2, CacheKey(skip_reading=True)),))
    (grant,) = lines(pool, skips)
    assert (grant.cached, grant.tokens) == (0, 10)
    pool.feed(release(2, 10))
    (grant,) = lines(pool, reserve(waiting=[Want(3, range(10))]))
    assert grant.cached == 8


def test_a_request_that_skips_the_cache_waits_for_nobody_who_computes_the_same() -> None:
    pool = KVPool(16, 4)
    twins = replace(
        reserve(waiting=[Want(1, range(10)), Want(2, range(10))], in_flight=True),
        keys=(Keyed(2, CacheKey(skip_reading=True)),),
    )
    assert [(grant.request, grant.cached) for grant in lines(pool, twins)] == [(1, 0), (2, 0)]


def test_a_block_hits_only_behind_the_same_blocks() -> None:
    pool = KVPool(8, 2)
    released(pool, 1, [1, 2, 3, 4, 5], 5)
    (other,) = lines(pool, reserve(waiting=[Want(2, [9, 9, 3, 4, 5])]))
    assert other.cached == 0


def test_only_computed_blocks_are_published() -> None:
    pool = KVPool(8, 4)
    released(pool, 1, range(12), 7)
    (grant,) = lines(pool, reserve(waiting=[Want(2, range(12))]))
    assert grant.cached == 4


def test_the_answer_of_a_request_is_hit_by_the_next_turn_of_its_conversation() -> None:
    pool = KVPool(8, 4)
    ask(pool, reserve(waiting=[Want(1, [1, 2, 3])]))
    ask(pool, reserve([Want(1, [4], 1, 3, 3)]))
    ask(pool, reserve([Want(1, [5], 1, 4, 4)]))
    pool.feed(release(1, 5, [6]))
    assert lines(pool, reserve(waiting=[Want(2, [1, 2, 3, 4, 5, 6, 7])])) == [Grant(2, 4, 3, [0, 1])]


def test_without_prefix_caching_nothing_is_hit_or_waited_for() -> None:
    pool = KVPool(8, 4, enable_prefix_caching=False)
    released(pool, 1, range(10), 10)
    twins = reserve(waiting=[Want(2, range(10)), Want(3, range(10))])
    assert [(grant.request, grant.cached) for grant in lines(pool, twins)] == [(2, 0), (3, 0)]
    assert pool.statistics().num_cached_blocks == 0


def test_of_equal_prompts_one_computes_while_the_others_wait_and_then_hit() -> None:
    pool = KVPool(16, 4)
    first = reserve(waiting=[Want(1, range(9)), Want(2, range(9)), Want(3, [50, 51])])
    assert [grant.request for grant in lines(pool, first)] == [1, 3]
    still = reserve(waiting=[Want(2, debt=9)], in_flight=True)
    assert lines(pool, still) == []
    then = reserve([Want(1, [9], 1, 9, 9)], [Want(2, debt=9)])
    assert lines(pool, then) == [Grant(1, 0, 1), Grant(2, 8, 1, [0, 1, 4])]


def test_nobody_waits_for_a_block_that_its_request_gave_up() -> None:
    pool = KVPool(16, 4)
    released(pool, 1, range(9), 0)
    assert lines(pool, reserve(waiting=[Want(2, range(9))], in_flight=True)) == [Grant(2, 0, 9, [0, 1, 2])]


def test_nobody_waits_for_a_block_that_is_computed_but_cannot_be_found() -> None:
    pool = KVPool(6, 2)
    released(pool, 1, [1, 2, 3, 4], 4)
    assert lines(pool, reserve(waiting=[Want(2, [1, 2, 3, 4])])) == [Grant(2, 2, 2, [0, 2])]
    evict = reserve([Want(2, [5], 1, 4, 4)], [Want(3, [9] * 6)])
    assert lines(pool, evict) == [Grant(2, 0, 1, [3]), Grant(3, 0, 6, [4, 5, 1])]
    pool.feed(release(3, 0))
    (grant,) = lines(pool, reserve(waiting=[Want(4, [1, 2, 3, 4, 5])], in_flight=True))
    assert (grant.cached, grant.tokens) == (2, 3)


def test_with_nothing_in_flight_nobody_waits_for_a_block() -> None:
    pool = KVPool(8, 4)
    ask(pool, reserve(waiting=[Want(1, range(5))]))
    assert lines(pool, reserve(waiting=[Want(2, range(5))])) == [Grant(2, 0, 5, [2, 3])]


def test_a_short_running_request_takes_from_the_tail_of_the_order() -> None:
    pool = KVPool(4, 2)
    ask(pool, reserve(waiting=[Want(1, [1, 2]), Want(2, [3, 4]), Want(3, [5, 6]), Want(4, [7, 8])]))
    running = [Want(request, [9], 1, 2, 2) for request in (1, 2, 3, 4)]
    answer = ask(pool, reserve(running, [Want(5, [1])]))
    assert unpack_ids(answer.preempted) == [4, 3]
    assert grants(answer) == [Grant(1, 0, 1, [3]), Grant(2, 0, 1, [2])]
    assert pool.statistics().preemptions == 2


def test_a_chunk_shrinks_to_what_one_victim_gives_before_the_next_is_taken() -> None:
    pool = KVPool(4, 2)
    ask(pool, reserve(waiting=[Want(request, [request, 0]) for request in (1, 2, 3, 4)]))
    running = [Want(1, [9, 9, 9], 3, 2, 2), *(Want(request, [9], 1, 2, 2) for request in (2, 3, 4))]
    answer = ask(pool, reserve(running, budget=3))
    assert (grants(answer), unpack_ids(answer.preempted)) == (
        [Grant(1, 0, 2, [3]), Grant(2, 0, 1, [2])],
        [4, 3],
    )


def test_nobody_is_admitted_in_a_step_that_preempts() -> None:
    pool = KVPool(4, 2)
    ask(pool, reserve(waiting=[Want(1, [1, 2]), Want(2, [3, 4, 5, 6, 7])]))
    answer = ask(pool, reserve([Want(1, [8], 1, 2, 2), Want(2, [9], 1, 5, 5)], [Want(3, [1])]))
    assert ([grant.request for grant in grants(answer)], unpack_ids(answer.preempted)) == ([1], [2])
    assert pool.statistics().num_free_blocks == 2


def test_a_preempted_request_comes_back_over_its_cached_blocks() -> None:
    pool = KVPool(4, 2)
    ask(pool, reserve(waiting=[Want(1, [1, 2, 3, 0]), Want(2, [4, 5, 6])]))
    answer = ask(pool, reserve([Want(1, [7], 1, 4, 4), Want(2, [9], 1, 3, 3)]))
    assert (grants(answer), unpack_ids(answer.preempted)) == ([Grant(1, 0, 1, [3])], [2])
    pool.feed(release(1, 4))
    assert lines(pool, reserve(waiting=[Want(2, debt=4)])) == [Grant(2, 2, 2, [2, 3])]


def test_with_nobody_behind_a_running_request_is_granted_what_fits() -> None:
    pool = KVPool(2, 4)
    ask(pool, reserve(waiting=[Want(1, range(8))], budget=3))
    assert lines(pool, reserve([Want(1, range(8, 20), 17, 3, 3)])) == [Grant(1, 0, 5, [1])]


def test_a_prompt_that_does_not_fit_stops_those_behind_it() -> None:
    pool = KVPool(4, 4)
    ask(pool, reserve(waiting=[Want(1, range(9))]))
    answer = ask(pool, reserve(waiting=[Want(2, [7] * 5), Want(3, [8])], in_flight=True))
    assert (grants(answer), unpack_ids(answer.refused)) == ([], [])


def test_it_says_when_blocks_are_short() -> None:
    pool = KVPool(4, 4)
    assert not ask(pool, reserve(waiting=[Want(1, range(9))])).is_full
    assert ask(pool, reserve(waiting=[Want(2, [7] * 5)], in_flight=True)).is_full
    assert not ask(pool, reserve([Want(1, [9], 1, 9, 9)], [Want(2, debt=5)], budget=1)).is_full


def test_blocks_are_short_when_one_that_runs_takes_those_of_another() -> None:
    pool = KVPool(2, 2)
    ask(pool, reserve(waiting=[Want(1, [1, 2]), Want(2, [3, 4])]))
    answer = ask(pool, reserve([Want(1, [9], 1, 2, 2), Want(2, [9], 1, 2, 2)]))
    assert (answer.is_full, unpack_ids(answer.preempted)) == (True, [2])


def test_the_watermark_is_kept_free_while_others_run() -> None:
    pool = KVPool(4, 4, watermark=0.5)
    assert [
        grant.request for grant in lines(pool, reserve(waiting=[Want(1, [1] * 4), Want(2, [2] * 8)]))
    ] == [1]
    assert lines(pool, reserve(waiting=[Want(2, debt=8)], in_flight=True)) == []
    assert [grant.request for grant in lines(pool, reserve(waiting=[Want(2, debt=8)]))] == [2]


@pytest.mark.parametrize("in_flight", [False, True])
def test_a_prompt_that_can_never_fit_is_refused_at_once_and_stops_nobody(in_flight: bool) -> None:
    pool = KVPool(2, 4)
    waiting = [Want(1, range(9)), Want(2, [1])]
    answer = ask(pool, reserve(waiting=waiting, in_flight=in_flight))
    assert (grants(answer), unpack_ids(answer.refused)) == ([Grant(2, 0, 1, [0])], [1])


def test_one_refusal_is_enough_to_go_on() -> None:
    pool = KVPool(2, 4)
    ask(pool, reserve(waiting=[Want(1, range(8))]))
    answer = ask(pool, reserve([Want(1, [9], 1, 8, 8)], [Want(2, [1, 2, 3])]))
    assert unpack_ids(answer.refused) == [1]


def test_a_running_request_that_cannot_grow_is_refused_when_nothing_is_in_flight() -> None:
    pool = KVPool(1, 4)
    ask(pool, reserve(waiting=[Want(1, range(4))]))
    grow = [Want(1, [4], 1, 4, 4)]
    assert unpack_ids(ask(pool, reserve(grow, in_flight=True)).refused) == []
    assert unpack_ids(ask(pool, reserve([Want(1, [], 1, 4, 4)])).refused) == [1]


def test_a_reset_frees_and_forgets_everything() -> None:
    pool = KVPool(4, 4)
    ask(pool, reserve(waiting=[Want(1, range(9))]))
    pool.feed(ResetPool(1))
    assert pool.poll(0.0) == (PoolReset(1),)
    assert pool.idle
    assert lines(pool, reserve(waiting=[Want(1, range(9))], epoch=1)) == [Grant(1, 0, 9, [0, 1, 2])]


def test_a_question_of_another_epoch_is_an_error() -> None:
    pool = KVPool(4, 4)
    with pytest.raises(AssertionError, match="another epoch"):
        pool.feed(reserve(waiting=[Want(1, [1])], epoch=1))


def test_the_answer_carries_the_step_and_the_epoch_of_the_question() -> None:
    pool = KVPool(4, 4)
    pool.feed(ResetPool(3))
    answer = ask(pool, reserve(waiting=[Want(1, [1])], step=7, epoch=3))
    assert (answer.step, answer.epoch) == (7, 3)


@dataclass
class Player:
    """A request as the model sees it: all the tokens that it will ever have, and what is computed.

    `tables` has its blocks in each group, None for one that fell out of the window.
    """

    tokens: list[int]
    num_known: int
    num_told: int = 0
    num_computed: int = 0
    num_scheduled: int = 0
    num_published: int = 0
    life: int = 0
    private: bool = False
    tables: list[list[int | None]] = field(default_factory=list)

    @property
    def debt(self) -> int:
        placeholder = self.num_scheduled >= self.num_known
        return min(self.num_known + placeholder, len(self.tokens)) - self.num_scheduled

    def start_again(self) -> None:
        self.num_computed = self.num_scheduled = self.num_published = 0
        self.life += 1
        self.private = False
        self.tables = []

    def held(self) -> list[int]:
        return [block for table in self.tables for block in table if block is not None]


class PoolMachine(RuleBasedStateMachine):
    """The pool beside a naive cache. A cell holds the whole prefix whose last token's KV it would be.

    `index` maps a group and the prefix that a full computed block of it ends to the block. Steps are
    computed in order, so that a grant may be written at once; what it computed is confirmed only when its
    step is done.
    """

    NUM_BLOCKS, SIZE, CHUNK = 7, 2, 5
    WINDOWS: tuple[int, ...] = (0,)

    def __init__(self) -> None:
        super().__init__()
        self.pool = KVPool(self.NUM_BLOCKS, self.SIZE, windows=self.WINDOWS, max_chunk=self.CHUNK, tells=True)
        self.mirror = Mirror(self.SIZE)
        self.cells: dict[tuple[int, int], tuple[int, ...]] = {}
        self.index: dict[tuple[int, tuple[int, ...]], int] = {}
        self.players: dict[int, Player] = {}
        self.running: list[int] = []
        self.steps: list[list[tuple[int, int, int]]] = []
        self.count = self.epoch = 0

    def ask(self, message: Reserve) -> Reserved:
        self.pool.feed(message)
        (answer,) = [said for said in self.listen() if isinstance(said, Reserved)]
        self.pool.check()
        return answer

    def listen(self) -> list[Any]:
        said = self.pool.poll(0.0)
        for message in said:
            if isinstance(message, CacheEvents):
                self.mirror.hear(message)
        return list(said)

    @rule(prompt=st.lists(st.integers(0, 1), min_size=1, max_size=9), more=st.integers(0, 4))
    def arrive(self, prompt: list[int], more: int) -> None:
        self.count += 1
        self.players[self.count] = Player(prompt + [2] * more, len(prompt))

    @precondition(lambda self: len(self.steps) < 2)
    @rule(budget=st.integers(1, 12))
    def plan(self, budget: int) -> None:
        running = [request for request in self.running if self.players[request].debt > 0]
        waiting = [request for request in self.players if request not in self.running]
        asked = reserve(
            [self.want(request) for request in running],
            [self.want(request) for request in waiting],
            budget=budget,
            in_flight=bool(self.steps),
            epoch=self.epoch,
        )
        answer = self.ask(asked)
        preempted = unpack_ids(answer.preempted)
        assert not answer.refused
        assert preempted == running[len(running) - len(preempted) :][::-1]
        for request in preempted:
            self.players[request].start_again()
            self.running.remove(request)
        granted = grants(answer)
        served = [grant.request for grant in granted]
        assert served == [request for request in running + waiting if request in served]
        assert not set(served) & set(preempted)
        assert not preempted or set(served) <= set(running)
        assert sum(grant.tokens for grant in granted) <= budget
        assert self.steps or granted or not self.players
        self.steps.append([self.write(grant) for grant in granted])

    def want(self, request: int) -> Want:
        """The line of this request; what it confirms is published."""
        player = self.players[request]
        news = player.tokens[player.num_told : player.num_known]
        player.num_told = player.num_known
        debt = player.debt if request in self.running else player.num_known
        self.publish(player)
        return Want(request, news, debt, player.num_computed, player.num_scheduled)

    def publish(self, player: Player) -> None:
        """Its full computed blocks can be found; what no later token sees is no longer its."""
        full = player.num_computed // self.SIZE
        for number in range(player.num_published, full):
            prefix = tuple(player.tokens[: (number + 1) * self.SIZE])
            for group, table in enumerate(player.tables):
                block = table[number]
                if block is not None and not player.private:
                    self.index.setdefault((group, prefix), block)
        player.num_published = max(player.num_published, full)
        for window, table in zip(self.WINDOWS, player.tables, strict=bool(player.tables)):
            for number in range(len(table)):
                if not self.sees(window, player.num_published * self.SIZE, number):
                    table[number] = None

    def sees(self, window: int, position: int, number: int) -> bool:
        """Whether the token at this position sees a token of the block of this number."""
        return not window or (number + 1) * self.SIZE - 1 >= position - window + 1

    def write(self, grant: Grant) -> tuple[int, int, int]:
        """Compute what was granted, and look at every cell that the request can see."""
        player = self.players[grant.request]
        each = len(grant.blocks) // len(self.WINDOWS)
        groups = [grant.blocks[group * each : (group + 1) * each] for group in range(len(self.WINDOWS))]
        found = grant.cached // self.SIZE
        if grant.request not in self.running:
            self.running = sorted([*self.running, grant.request])
            hits = self.hits(player)
            assert [[self.block(each) for each in group[:found]] for group in groups] == hits
            assert grant.cached == len(hits[0]) * self.SIZE
            player.num_scheduled = player.num_computed = grant.cached
            player.num_published = found
            player.tables = [[] for _ in self.WINDOWS]
        fresh = [block for group in groups for block in group[found:]]
        assert not any(set(fresh) & set(other.held()) for other in self.players.values())
        self.index = {content: block for content, block in self.index.items() if block not in fresh}
        for table, group in zip(player.tables, groups, strict=True):
            table += [self.block(block) for block in group]
        assert 0 < grant.tokens <= min(self.CHUNK, player.debt)
        for position in range(player.num_scheduled, player.num_scheduled + grant.tokens):
            for table in player.tables:
                block = table[position // self.SIZE]
                assert block is not None
                assert sum(block in other.held() for other in self.players.values()) == 1
                self.cells[block, position % self.SIZE] = tuple(player.tokens[: position + 1])
        player.num_scheduled += grant.tokens
        self.look_at_cells(player)
        return grant.request, player.life, grant.tokens

    def look_at_cells(self, player: Player) -> None:
        for window, table in zip(self.WINDOWS, player.tables, strict=True):
            assert len(table) == self.blocks_of(player.num_scheduled)
            first = max(0, player.num_scheduled - window) if window else 0
            for position in range(first, player.num_scheduled):
                block = table[position // self.SIZE]
                assert block is not None
                assert self.cells[block, position % self.SIZE] == tuple(player.tokens[: position + 1])

    def block(self, number: int) -> int | None:
        return None if number == -1 else number

    def hits(self, player: Player) -> list[list[int | None]]:
        """For each group, the blocks of the longest prefix that this prompt may share."""
        for length in range((player.num_known - 1) // self.SIZE, 0, -1):
            found: list[list[int | None]] = []
            complete = True
            for group, window in enumerate(self.WINDOWS):
                seen = [self.sees(window, length * self.SIZE, number) for number in range(length)]
                prefixes = [tuple(player.tokens[: (number + 1) * self.SIZE]) for number in range(length)]
                blocks = [self.index.get((group, prefix)) for prefix in prefixes]
                complete &= None not in [blocks[number] for number in range(length) if seen[number]]
                found.append([blocks[number] if seen[number] else None for number in range(length)])
            if complete:
                return found
        return [[] for _ in self.WINDOWS]

    @rule()
    def reset_prefix_cache(self) -> None:
        self.pool.feed(ResetPrefixCache())
        assert self.listen()[0] == PoolReset(self.epoch)
        self.index.clear()
        for player in self.players.values():
            player.private = bool(player.tables)

    @precondition(lambda self: self.steps)
    @rule()
    def oldest_step_is_done(self) -> None:
        for request, life, count in self.steps.pop(0):
            player = self.players.get(request)
            if player is not None and player.life == life:
                player.num_computed += count
                if player.num_computed == len(player.tokens):
                    self.end(request)
                elif player.num_computed == player.num_known:
                    player.num_known += 1

    @precondition(lambda self: self.players)
    @rule(data=st.data())
    def abort(self, data: st.DataObject) -> None:
        self.end(data.draw(st.sampled_from(list(self.players))))

    def end(self, request: int) -> None:
        player = self.players.pop(request)
        if request in self.running:
            self.running.remove(request)
        if player.num_told:
            self.publish(player)
            news = player.tokens[player.num_told : player.num_known]
            self.pool.feed(release(request, player.num_computed, news))

    @rule()
    def lose_everything(self) -> None:
        self.epoch += 1
        self.pool.feed(ResetPool(self.epoch))
        assert self.listen()[0] == PoolReset(self.epoch)
        self.index.clear()
        self.steps.clear()
        self.running.clear()
        for player in self.players.values():
            player.start_again()
            player.num_told = 0

    def blocks_of(self, num_tokens: int) -> int:
        return -(-num_tokens // self.SIZE)

    @invariant()
    def agrees(self) -> None:
        self.pool.check()
        self.listen()
        held = {block for player in self.players.values() for block in player.held()}
        statistics = self.pool.statistics()
        assert len(self.mirror.contents) == len(self.index)
        assert statistics.num_free_blocks == self.NUM_BLOCKS - len(held)
        assert statistics.num_cached_blocks == len(self.index)

    def teardown(self) -> None:
        for request in list(self.players):
            self.end(request)
        self.listen()
        assert self.pool.idle


class WindowedMachine(PoolMachine):
    """Three groups of layers: two see a few tokens each, one sees all."""

    NUM_BLOCKS = 16
    WINDOWS = (3, 0, 4)


class ShortSightedMachine(PoolMachine):
    """No group sees all."""

    NUM_BLOCKS = 5
    WINDOWS = (2,)


MACHINES = (PoolMachine, WindowedMachine, ShortSightedMachine)


@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
def test_the_pool_agrees_with_a_naive_one(machine: type[PoolMachine]) -> None:
    run_state_machine_as_test(
        machine, settings=settings(max_examples=70, stateful_step_count=40, deadline=None)
    )
