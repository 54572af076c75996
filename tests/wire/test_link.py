"""Links over pipes that cut what they carry, and over sockets; every end but a goodbye is an error."""

from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import anyio
import anyio.abc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorllm.errors import DecodeError, LinkLost, LinkRefused
from actorllm.messages import MESSAGES, Fault, Hello, Limits, Message, Seen
from actorllm.testing.pipe import PipeEnd, open_pipe
from actorllm.testing.strategies import messages
from actorllm.wire.codec import MAX_BYTES, encode
from actorllm.wire.frames import frame
from actorllm.wire.link import GOODBYE, PROTOCOL, Link, greeting_of, hello
from actorllm.wire.mailbox import Mailbox, open_mailbox

from .sides import HELLO, WORDS, Side, outcome, pair, run_both

pytestmark = pytest.mark.anyio


async def hear(side: Side, data: bytes) -> Exception:
    """What the link says of a peer that sends these bytes and is gone."""
    peer, side.stream = open_pipe(Random(1))
    errors: list[Exception | None] = []
    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(outcome, side.link.run, errors)
            await peer.send(data)
            await anyio.wait_all_tasks_blocked()
            await peer.aclose()
    assert errors[0] is not None
    return errors[0]


@pytest.mark.parametrize("seed", range(5))
async def test_both_ways_wherever_the_bytes_are_cut(seed: int) -> None:
    async with pair(seed) as (near, far):
        near.say(WORDS)
        far.say(WORDS[:7])
        assert await run_both(near, far) == [None, None]
        assert far.heard == list(WORDS)
        assert near.heard == list(WORDS[:7])


@pytest.mark.slow
@given(words=st.lists(messages(), max_size=8), seed=st.integers(0, 2**32))
def test_any_messages_and_any_cuts(words: list[Message], seed: int) -> None:
    async def main() -> None:
        async with pair(seed) as (near, far):
            near.say(words)
            far.say(())
            assert await run_both(near, far) == [None, None]
            assert far.heard == words

    anyio.run(main)


async def test_over_a_unix_socket(tmp_path: Path) -> None:
    heard: list[Any] = []
    outbox: Mailbox[Any] = open_mailbox(100)
    answers: Mailbox[Any] = open_mailbox(100)
    errors: list[Exception | None] = []
    with outbox.port, outbox.inbox, answers.port, answers.inbox, anyio.fail_after(10):
        listener = await anyio.create_unix_listener(tmp_path / "link")

        async def answer(stream: anyio.abc.SocketStream) -> None:
            def echo(message: Any) -> None:
                answers.port.send_nowait(message)
                if message == WORDS[-1]:
                    answers.port.close()

            async with stream:
                await outcome(Link(stream, answers.inbox, echo).run, errors)

        async with listener, anyio.create_task_group() as tasks:
            tasks.start_soon(listener.serve, answer)
            async with await anyio.connect_unix(tmp_path / "link") as stream:
                for word in WORDS:
                    outbox.port.send_nowait(word)
                outbox.port.close()
                await outcome(Link(stream, outbox.inbox, heard.append).run, errors)
            await anyio.wait_all_tasks_blocked()
            tasks.cancel_scope.cancel()
    assert errors == [None, None]
    assert heard == list(WORDS)


async def test_what_has_come_goes_in_one_write() -> None:
    writes: list[bytes] = []

    class Listening(PipeEnd):
        async def send(self, item: bytes) -> None:
            writes.append(item)
            await super().send(item)

    async with pair() as (near, far):
        assert isinstance(near.stream, PipeEnd)
        near.stream.__class__ = Listening
        near.say(WORDS)
        far.say(())
        await run_both(near, far)
    assert writes == [HELLO, b"".join(frame(encode(word)) for word in WORDS), GOODBYE]


async def test_one_side_may_go_on_after_the_goodbye_of_the_other() -> None:
    async with pair() as (near, far), anyio.create_task_group() as tasks:
        near.say(())
        tasks.start_soon(near.link.run)
        link = far.link
        await tasks.start(link.run)
        await anyio.wait_all_tasks_blocked()
        far.say(WORDS)
        with anyio.fail_after(5):
            while len(near.heard) < len(WORDS):
                await anyio.wait_all_tasks_blocked()
        assert link.statistics().num_sent == len(WORDS)
        assert link.statistics().num_received == 0


# -- greetings ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("theirs", "text"),
    [
        (replace(hello(), protocol=PROTOCOL - 1), "protocol 0, and we speak 1; the peer is older"),
        (replace(hello(), protocol=PROTOCOL + 1), "protocol 2, and we speak 1; this side is older"),
        (Hello(PROTOCOL, b"other", 3), "a vocabulary of 3 fields, .* the peer is older"),
        (Hello(PROTOCOL, b"other", 9999), "a vocabulary of 9999 fields, .* this side is older"),
        (replace(hello(), vocabulary=b"other"), "neither side is older"),
    ],
)
async def test_a_peer_of_another_version_is_refused(theirs: Hello, text: str) -> None:
    async with pair() as (near, far):
        far.greeting = theirs
        near.say(WORDS)
        far.say(WORDS)
        errors: list[Exception | None] = []
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(outcome, far.link.run, [])
                await outcome(near.link.run, errors)
                tasks.cancel_scope.cancel()
        assert isinstance(errors[0], LinkRefused)
        with pytest.raises(LinkRefused, match=text):
            raise errors[0]
        assert near.heard == []
        assert near.outbox.inbox.statistics().current_buffer_used == len(WORDS)


def test_the_fingerprint_sees_every_difference() -> None:
    @dataclass(frozen=True)
    class Seen:
        step: int

    plain = greeting_of({1: Seen})
    assert plain != greeting_of({2: Seen})
    assert plain != greeting_of({1: Seen, 2: Fault})
    variants: list[dict[str, Any]] = [{"step": str}, {"count": int}, {"step": int | None}]
    made = [type("Seen", (), {"__annotations__": fields}) for fields in variants]
    made.append(type("Seen", (), {"__annotations__": {"step": int}, "step": 0}))
    made.append(type("Saw", (), {"__annotations__": {"step": int}}))
    greetings = {greeting_of({1: dataclass(frozen=True)(cls)}).vocabulary for cls in made}
    assert len(greetings | {plain.vocabulary}) == len(made) + 1


def test_the_greeting_is_that_of_the_registry() -> None:
    assert hello() == greeting_of(dict(reversed(MESSAGES.items())))
    assert hello().num_fields > len(MESSAGES)


async def test_nothing_is_heard_before_the_greeting() -> None:
    async with pair() as (near, _):
        error = await hear(near, frame(encode(Seen(1))))
    assert isinstance(error, DecodeError)
    assert str(error) == "the first message must be Hello, not Seen"
    assert near.heard == []


# -- ends ---------------------------------------------------------------------------------------

WHOLE = HELLO + frame(encode(Seen(1))) + frame(encode(Seen(2)))


@pytest.mark.parametrize("cut", range(len(WHOLE) + 1))
async def test_a_peer_that_vanishes_anywhere(cut: int) -> None:
    async with pair() as (near, _):
        error = await hear(near, WHOLE[:cut])
    assert isinstance(error, LinkLost)
    assert str(error).startswith("the peer is gone: ")
    num_whole = sum(cut >= end for end in (len(WHOLE) - len(frame(encode(Seen(2)))), len(WHOLE)))
    assert near.heard == [Seen(1), Seen(2)][:num_whole]


async def test_a_torn_frame_says_where_it_is_torn() -> None:
    async with pair() as (near, _):
        error = await hear(near, WHOLE[:-1])
    torn = len(frame(encode(Seen(2)))) - 1
    assert str(error) == f"the peer is gone: the stream ended within a frame, {torn} bytes into it"


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        HELLO + frame(b"\xc1"),
        HELLO + frame(encode(Seen(1)))[:4] + b"\x00" * 9,
        HELLO + (MAX_BYTES + 1).to_bytes(4, "big"),
    ],
)
async def test_garbage_is_named(garbage: bytes) -> None:
    async with pair() as (near, _):
        assert isinstance(await hear(near, garbage), DecodeError | LinkLost)
        assert near.heard == []


async def test_the_writer_hears_of_a_peer_that_is_gone() -> None:
    async with pair() as (near, far):
        errors: list[Exception | None] = []
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(outcome, near.link.run, errors)
                await far.stream.send(HELLO + GOODBYE)  # it hears no more, and reads no more
                await anyio.wait_all_tasks_blocked()
                await far.stream.aclose()
                near.say(WORDS)
        assert isinstance(errors[0], LinkLost)
        assert isinstance(errors[0].__cause__, anyio.BrokenResourceError)


async def test_what_deliver_raises_passes_alone() -> None:
    async with pair() as (near, far):
        small: Mailbox[Any] = open_mailbox(2)
        far.say(WORDS)
        errors: list[Exception | None] = []
        with small.port, small.inbox, anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(outcome, far.link.run, [])
                await outcome(Link(near.stream, near.outbox.inbox, small.port.send_nowait).run, errors)
                tasks.cancel_scope.cancel()
        assert isinstance(errors[0], anyio.WouldBlock)


async def test_a_message_that_cannot_travel_is_an_error_here() -> None:
    async with pair() as (near, far):
        near.say([Seen(1), Limits(stop_token_ids=[1])])  # type: ignore[arg-type]
        errors: list[Exception | None] = []
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(outcome, far.link.run, [])
                await outcome(near.link.run, errors)
                tasks.cancel_scope.cancel()
        assert isinstance(errors[0], TypeError)
        assert far.heard == []
