from typing import Any

import anyio
import pytest

from actorllm.messages import Abort, Limits, Sampling, Seen, ToScheduler
from actorllm.wire.mailbox import Inbox, Mailbox, Port, Verified, open_mailbox

pytestmark = pytest.mark.anyio


async def test_what_is_sent_is_received_in_order() -> None:
    ends: Mailbox[ToScheduler] = open_mailbox(3)
    with ends.port, ends.inbox:
        port: Port[ToScheduler] = ends.port
        inbox: Inbox[ToScheduler] = ends.inbox
        port.send_nowait(Abort(1))
        port.send_nowait(Seen(2))
        assert await inbox.receive() == Abort(1)
        assert inbox.receive_nowait() == Seen(2)
        with pytest.raises(anyio.WouldBlock):
            inbox.receive_nowait()


async def test_a_mailbox_holds_its_capacity_and_no_more() -> None:
    ends: Mailbox[Seen] = open_mailbox(2)
    with ends.port, ends.inbox:
        ends.port.send_nowait(Seen(1))
        ends.port.send_nowait(Seen(2))
        with pytest.raises(anyio.WouldBlock):
            ends.port.send_nowait(Seen(3))
        assert ends.inbox.receive_nowait() == Seen(1)
        ends.port.send_nowait(Seen(3))
        assert [ends.inbox.receive_nowait(), ends.inbox.receive_nowait()] == [Seen(2), Seen(3)]


async def test_a_waiting_actor_is_woken() -> None:
    ends: Mailbox[Seen] = open_mailbox(1)
    received = []

    async def receive() -> None:
        received.append(await ends.inbox.receive())

    with ends.port, ends.inbox:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(receive)
            await anyio.wait_all_tasks_blocked()
            assert received == []
            ends.port.send_nowait(Seen(7))
    assert received == [Seen(7)]


async def test_the_inbox_ends_when_the_senders_are_gone() -> None:
    ends: Mailbox[Seen] = open_mailbox(1)
    with ends.inbox:
        with ends.port:
            ends.port.send_nowait(Seen(1))
        assert await ends.inbox.receive() == Seen(1)
        with pytest.raises(anyio.EndOfStream):
            await ends.inbox.receive()


async def test_a_mailbox_without_room_is_not_opened() -> None:
    with pytest.raises(ValueError, match="at least 1 message, not 0"):
        open_mailbox(0)


async def test_a_verified_message_has_been_through_the_codec() -> None:
    ends: Mailbox[Any] = open_mailbox(2)
    with ends.port, ends.inbox:
        sent = Sampling(temperature=1, seed=3)
        Verified[Any](ends.port).send_nowait(sent)
        received = ends.inbox.receive_nowait()
        assert received == sent
        assert received is not sent
        assert type(received.temperature) is float


async def test_a_message_that_cannot_travel_is_not_sent() -> None:
    ends: Mailbox[Any] = open_mailbox(1)
    with ends.port, ends.inbox:
        with pytest.raises(TypeError, match=r"Limits.stop_token_ids: expected array, got list"):
            Verified[Any](ends.port).send_nowait(Limits(stop_token_ids=[1]))  # type: ignore[arg-type]
        assert ends.inbox.statistics().current_buffer_used == 0


async def test_a_verified_port_is_a_port_and_passes_would_block_on() -> None:
    ends: Mailbox[ToScheduler] = open_mailbox(1)
    with ends.port, ends.inbox:
        port: Port[ToScheduler] = Verified(ends.port)
        port.send_nowait(Abort(1))
        with pytest.raises(anyio.WouldBlock):
            port.send_nowait(Abort(2))
