"""Seats: nobody is lost, and who is let in next."""

from itertools import count

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorllm.cores.policy import Deadline, Fair, Fcfs, Policy, Priority
from actorllm.engine.seats import Caller, Seats

pytestmark = pytest.mark.anyio


class Room:
    """Seats, and what has become of those who asked for one."""

    def __init__(self, num_seats: int, policy: Policy | None = None) -> None:
        self.seats = Seats(num_seats, policy)
        self.seated: list[str] = []
        self.scopes: dict[str, anyio.CancelScope] = {}
        self._arrivals = count()

    def caller(self, tenant: str = "", priority: int = 0, due: float = float("inf")) -> Caller:
        return Caller(next(self._arrivals), priority, tenant, due)

    async def ask(self, name: str, caller: Caller) -> None:
        with anyio.CancelScope() as self.scopes[name]:
            await self.seats.acquire(caller)
            self.seated.append(name)


async def order(policy: Policy, callers: dict[str, dict[str, float]]) -> list[str]:
    """In what order these get the only seat, when all of them wait for it."""
    room = Room(1, policy)
    holder = room.caller()
    await room.seats.acquire(holder)
    async with anyio.create_task_group() as nursery:
        for name, terms in callers.items():
            nursery.start_soon(room.ask, name, room.caller(**terms))  # type: ignore[arg-type]
            await anyio.wait_all_tasks_blocked()
        held = holder
        for _ in callers:
            room.seats.release(room.seats.group(held))
            await anyio.wait_all_tasks_blocked()
            held = room.caller(**callers[room.seated[-1]])  # type: ignore[arg-type]
    assert room.seats.num_waiting == room.seats.num_free == 0
    return room.seated


async def test_the_policy_says_who_comes_first() -> None:
    callers: dict[str, dict[str, float]] = {
        "a": {"priority": 2, "due": 9.0},
        "b": {"priority": 1, "due": 7.0},
        "c": {"priority": 1},
    }
    assert await order(Fcfs(), callers) == ["a", "b", "c"]
    assert await order(Priority(), callers) == ["b", "c", "a"]
    assert await order(Deadline(), callers) == ["b", "a", "c"]


async def test_tenants_take_turns_where_the_policy_is_fair() -> None:
    room = Room(4, Fair())
    greedy = [room.caller("greedy") for _ in range(8)]
    for caller in greedy[:4]:
        assert room.seats.acquire_nowait(caller)
    async with anyio.create_task_group() as nursery:
        for number, caller in enumerate(greedy[4:]):
            nursery.start_soon(room.ask, f"greedy {number}", caller)
        await anyio.wait_all_tasks_blocked()
        for number in range(2):
            nursery.start_soon(room.ask, f"modest {number}", room.caller("modest"))
        await anyio.wait_all_tasks_blocked()
        for _ in range(4):
            room.seats.release("greedy")
            await anyio.wait_all_tasks_blocked()
        assert room.seated == ["modest 0", "modest 1", "greedy 0", "greedy 1"]
        nursery.cancel_scope.cancel()


async def test_the_last_seats_are_kept_from_who_has_many() -> None:
    room = Room(16, Fair())
    assert [room.seats.acquire_nowait(room.caller("greedy")) for _ in range(15)] == [True] * 14 + [False]
    async with anyio.create_task_group() as nursery:
        nursery.start_soon(room.ask, "greedy", room.caller("greedy"))
        await anyio.wait_all_tasks_blocked()
        assert (room.seated, room.seats.num_waiting) == ([], 1)
        assert [room.seats.acquire_nowait(room.caller("modest")) for _ in range(3)] == [True, True, False]
        room.seats.release("modest")
        await anyio.wait_all_tasks_blocked()
        assert room.seated == []
        room.seats.release("modest")
        assert room.seats.num_free == 2
        room.seats.release("greedy")
        await anyio.wait_all_tasks_blocked()
        assert room.seated == ["greedy"]


async def test_all_seats_are_for_all_where_the_policy_knows_no_groups() -> None:
    room = Room(16)
    assert all(room.seats.acquire_nowait(room.caller("greedy")) for _ in range(16))
    assert not room.seats.acquire_nowait(room.caller("modest"))


async def test_who_is_cancelled_has_no_seat_and_leaves_no_trace() -> None:
    room = Room(1)
    await room.seats.acquire(room.caller())
    async with anyio.create_task_group() as nursery:
        for name in "abcde":
            nursery.start_soon(room.ask, name, room.caller())
            await anyio.wait_all_tasks_blocked()
        for name in "abd":
            room.scopes[name].cancel()
        room.scopes["e"].cancel()
        room.seats.release("")  # while they are still to hear of it
        await anyio.wait_all_tasks_blocked()
        assert (room.seated, room.seats.num_waiting) == (["c"], 0)
    room.seats.release("")
    assert room.seats.num_free == 1


async def test_the_seat_of_who_is_cancelled_as_it_comes_is_not_lost() -> None:
    room = Room(1)
    await room.seats.acquire(room.caller())
    async with anyio.create_task_group() as nursery:
        for name in "ab":
            nursery.start_soon(room.ask, name, room.caller())
            await anyio.wait_all_tasks_blocked()
        room.seats.release("")
        room.scopes["a"].cancel()
        await anyio.wait_all_tasks_blocked()
        if room.seated == ["a"]:  # it has heard of the seat first, and has it
            room.seats.release("")
            await anyio.wait_all_tasks_blocked()
        assert room.seated[-1:] == ["b"]


async def test_who_is_dismissed_need_wait_no_more() -> None:
    room = Room(1, Fair())
    await room.seats.acquire(room.caller())
    async with anyio.create_task_group() as nursery:
        for tenant in "abab":
            nursery.start_soon(room.ask, tenant, room.caller(tenant))
        await anyio.wait_all_tasks_blocked()
        room.seats.dismiss()
    assert sorted(room.seated) == ["a", "a", "b", "b"]
    for group in ("", "a", "a", "b", "b"):
        room.seats.release(group)
    assert room.seats.num_free == 1


MOVES = st.lists(
    st.tuples(st.sampled_from(["ask", "leave", "release"]), st.sampled_from("abc"), st.integers(0, 9)),
    max_size=60,
)


@pytest.mark.parametrize("policy", [Fcfs, Priority, Fair])
@settings(max_examples=60, deadline=None)
@given(moves=MOVES)
def test_no_seat_is_lost_and_none_stays_free_while_somebody_may_have_it(
    policy: type[Policy], moves: list[tuple[str, str, int]]
) -> None:
    async def main() -> None:
        seats, held, scopes = Seats(9, policy()), list[str](), dict[int, anyio.CancelScope]()

        async def ask(number: int, caller: Caller) -> None:
            with anyio.CancelScope() as scopes[number]:
                await seats.acquire(caller)
                held.append(seats.group(caller))
            scopes.pop(number, None)

        async with anyio.create_task_group() as nursery:
            for number, (move, tenant, which) in enumerate(moves):
                if move == "ask":
                    nursery.start_soon(ask, number, Caller(number, which, tenant))
                elif move == "leave" and scopes:
                    scopes[sorted(scopes)[which % len(scopes)]].cancel()
                elif move == "release" and held:
                    seats.release(held.pop(which % len(held)))
                await anyio.wait_all_tasks_blocked()
                assert seats.num_free == 9 - len(held)
                assert seats.num_waiting == len(scopes)
                assert not scopes or seats.num_free <= 9 // 8
            nursery.cancel_scope.cancel()

    anyio.run(main, backend="trio")
