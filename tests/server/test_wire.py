"""Streams that are kept alive, and clients that do not read, under a clock that waits for nobody."""

from dataclasses import replace
from typing import Any

import anyio
import pytest
import trio.testing

from actorllm import Engine, SamplingParams
from actorllm.messages import Abort, Tokens
from actorllm.server.app import create_app
from actorllm.server.settings import ServerSettings
from actorllm.server.wire import KEEP_ALIVE, Gone, Unread, Wire, while_connected

from .build import CHAT, COMPLETIONS, CONFIG, HELLO, Caller, Held

pytestmark = pytest.mark.anyio

HEADERS = [(b"content-type", b"text/event-stream")]

under_a_virtual_clock = pytest.mark.parametrize(
    "anyio_backend",
    [pytest.param(("trio", {"clock": trio.testing.MockClock(autojump_threshold=0)}), id="virtual clock")],
)


class Client:
    """What a client has been sent. It stops reading after `reads` messages."""

    def __init__(self, reads: float = float("inf")) -> None:
        self.sent: list[Any] = []
        self.at: list[float] = []
        self.reads = reads
        self._begin = anyio.current_time()

    async def send(self, message: Any) -> None:
        if len(self.sent) >= self.reads:
            await anyio.sleep_forever()
        self.sent.append(message)
        self.at.append(anyio.current_time() - self._begin)

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if message["type"] == "http.response.body"]


async def connected() -> Any:
    await anyio.sleep_forever()


@under_a_virtual_clock
async def test_comments_fill_the_silence_and_nothing_else() -> None:
    client = Client()
    wire = Wire(client.send, HEADERS, keep_alive=10, unread=60)

    async def work() -> None:
        await anyio.sleep(9)
        assert not wire.opened.is_set()
        await anyio.sleep(16)
        assert wire.opened.is_set()
        await wire.write(b"data: 1\n\n")
        await anyio.sleep(9)
        await wire.write(b"data: 2\n\n")
        await anyio.sleep(15)
        await wire.write(b"", more=False)

    await while_connected(connected, work, wire.watch)
    assert client.sent[0] == {"type": "http.response.start", "status": 200, "headers": HEADERS}
    assert client.bodies == [KEEP_ALIVE, KEEP_ALIVE, b"data: 1\n\n", b"data: 2\n\n", KEEP_ALIVE, b""]
    assert [round(at) for at in client.at] == [10, 10, 20, 25, 34, 44, 49]
    assert [message.get("more_body") for message in client.sent] == [None, *[True] * 5, False]


@pytest.mark.parametrize("reads", [0, 1, 2])
@under_a_virtual_clock
async def test_a_client_that_does_not_read_is_given_up(reads: int) -> None:
    client = Client(reads)
    wire = Wire(client.send, HEADERS, keep_alive=1000, unread=60)

    async def work() -> None:
        while True:
            await wire.write(b"data: 1\n\n")

    begin = anyio.current_time()
    with pytest.raises(Unread):
        await while_connected(connected, work, wire.watch)
    assert 60 <= anyio.current_time() - begin <= 120
    assert len(client.sent) == reads


@under_a_virtual_clock
async def test_a_client_that_does_not_even_read_comments_is_given_up() -> None:
    client = Client(2)
    wire = Wire(client.send, HEADERS, keep_alive=10, unread=60)
    begin = anyio.current_time()
    with pytest.raises(Unread):
        await while_connected(connected, anyio.sleep_forever, wire.watch)
    assert round(anyio.current_time() - begin) == 10 + 10 + 60


@under_a_virtual_clock
async def test_a_slow_client_is_waited_for() -> None:
    sent = []

    async def send(message: Any) -> None:
        await anyio.sleep(50)
        sent.append(message)

    wire = Wire(send, HEADERS, keep_alive=1000, unread=60)

    async def work() -> str:
        await wire.write(b"data: 1\n\n")
        await wire.write(b"data: 2\n\n", more=False)
        return "done"

    assert await while_connected(connected, work, wire.watch) == "done"
    assert len(sent) == 3


@pytest.mark.parametrize("taken", [0, 1])
async def test_a_start_that_was_not_sent_is_sent_again_and_one_that_was_is_not(taken: int) -> None:
    client = Client(taken)
    wire = Wire(client.send, HEADERS, keep_alive=1000, unread=60)
    async with anyio.create_task_group() as nursery:
        nursery.start_soon(wire.write, b"data: 1\n\n")
        await anyio.wait_all_tasks_blocked()
        assert wire.begun
        nursery.cancel_scope.cancel()
    client.reads = 9
    await wire.write(b"data: error\n\n", more=False)
    assert [message["type"] for message in client.sent] == ["http.response.start", "http.response.body"]
    assert client.bodies == [b"data: error\n\n"]


async def test_a_server_that_fails_to_send_says_that_the_client_has_gone() -> None:
    async def send(message: Any) -> None:
        raise BrokenPipeError

    wire = Wire(send, HEADERS, keep_alive=0.001, unread=60)
    with pytest.raises(Gone):
        await wire.write(b"data: 1\n\n")
    with pytest.raises(Gone):
        await Wire(send, HEADERS, keep_alive=0.001, unread=60).watch()


class Deaf(Caller):
    """A client that takes the first message and no other."""

    async def send(self, message: Any) -> None:
        await super().send(message)
        if len(self.sent) > 1:
            await anyio.sleep_forever()


async def test_the_request_of_a_client_that_does_not_read_fails_and_no_other() -> None:
    held = Held(step=40)
    settings = ServerSettings(unread_timeout=0.05)
    async with Engine(CONFIG, parts=held.parts) as engine:
        app = create_app(engine, settings)
        request = {"messages": HELLO, "max_tokens": 20, "ignore_eos": True, "temperature": 0, "stream": True}
        deaf, honest = Deaf(CHAT, request | {"max_tokens": 400}), Caller(CHAT, request)
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(deaf.call, app)
            nursery.start_soon(honest.call, app)
        await held.wait(Abort)
        held.gate.set()
        await engine.check()
    assert len(deaf.sent) == 2
    assert b"[DONE]" in honest.sent[-1]["body"]


class Reader(Caller):
    """A client that notes when it has read a text."""

    def __init__(self, wanted: bytes, path: str, body: dict[str, Any]) -> None:
        super().__init__(path, body)
        self.has_read = anyio.Event()
        self._wanted = wanted

    async def send(self, message: Any) -> None:
        await super().send(message)
        if self._wanted in message.get("body", b""):
            self.has_read.set()


TWO = {"prompt": ["abc", "xyz"], "max_tokens": 99, "ignore_eos": True, "temperature": 0, "stream": True}


async def test_a_prompt_that_waits_for_a_seat_holds_nobody_up_for_longer_than_the_interval() -> None:
    held = Held(step=8)
    async with Engine(replace(CONFIG, max_requests=1), parts=held.parts) as engine:
        reader = Reader(b'"index":', COMPLETIONS, TWO)
        settings = ServerSettings(keep_alive_interval=0.01)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as nursery:
                nursery.start_soon(reader.call, create_app(engine, settings))
                await reader.has_read.wait()
                reader.gone.set()
        held.gate.set()
        await engine.check()
    assert [message["type"] for message in reader.sent[:2]] == ["http.response.start", "http.response.body"]
    assert reader.sent[1]["body"] == KEEP_ALIVE


async def test_before_that_nothing_is_sent() -> None:
    held = Held(step=8)
    async with Engine(replace(CONFIG, max_requests=1), parts=held.parts) as engine:
        caller = Caller(COMPLETIONS, TWO)
        async with anyio.create_task_group() as nursery:
            nursery.start_soon(caller.call, create_app(engine))
            await held.wait(Tokens)
            await anyio.wait_all_tasks_blocked()
            caller.gone.set()
        held.gate.set()
        await engine.check()
    assert caller.sent == []


async def test_what_fails_behind_a_comment_is_an_event() -> None:
    held = Held()
    async with Engine(replace(CONFIG, max_requests=1), parts=held.parts) as engine:
        first = engine.generate("abc", SamplingParams(max_tokens=99, ignore_eos=True))
        await first.accepted()
        body = {"prompt": "xyz", "max_tokens": 9, "stream": True, "queue_timeout": 0.1}
        caller = Caller(COMPLETIONS, body)
        with anyio.move_on_after(10):
            await caller.call(create_app(engine, ServerSettings(keep_alive_interval=0.01)))
        first.close()
        held.gate.set()
        await engine.check()
    assert caller.sent[0]["status"] == 200
    assert caller.sent[1]["body"] == KEEP_ALIVE
    assert b'"code":504' in caller.sent[-1]["body"]
    assert not caller.sent[-1]["more_body"]
