"""Heavy work on threads, and the way back into the event loop."""

import threading
from dataclasses import replace
from typing import Any

import anyio
import pytest

from actorllm import InvalidRequest
from actorllm.actors.jobs import DeviceThread, PooledJobs, box, do, poster
from actorllm.messages import (
    Fault,
    Job,
    JobDone,
    Limits,
    Question,
    Render,
    Rendered,
    Sampling,
    TextPrompt,
    TextRules,
)
from actorllm.wire.mailbox import Mailbox, open_mailbox

pytestmark = pytest.mark.anyio


class Panic(BaseException):
    """What some libraries raise beside Exception."""


def job(number: int) -> Job:
    question = Question(TextPrompt("x"), Sampling(), Limits(), TextRules())
    return Job(number, Render(number, question))


def answer(work: Any) -> Rendered:
    if work.request == 66:
        raise Panic("a library gave up")
    if work.request == 13:
        raise InvalidRequest("thirteen", "prompt")
    return Rendered(work.request, str(threading.current_thread().name).encode())


def test_an_error_is_boxed_with_its_parameter() -> None:
    boxed = box(InvalidRequest("no", "prompt"))
    assert replace(boxed, origin="") == Fault("InvalidRequest", "no", "prompt")
    assert boxed.origin.endswith("InvalidRequest: no\n")
    assert replace(box(KeyError("x")), origin="") == Fault("KeyError", "'x'", None)


def test_ctrl_c_is_no_fault_of_a_job() -> None:
    def work(_: Any) -> Rendered:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        do(work, job(1))


async def test_pooled_jobs_all_come_back() -> None:
    ends: Mailbox[JobDone] = open_mailbox(20)
    with ends.port, ends.inbox:
        async with anyio.create_task_group() as nursery:
            jobs = PooledJobs(answer, nursery, ends.port.send_nowait, 2)
            for number in range(10, 16):
                jobs.start(job(number))
        done = [ends.inbox.receive_nowait() for _ in range(6)]
    assert {each.id for each in done} == set(range(10, 16))
    faults = {each.id: replace(each.fault, origin="") for each in done if each.fault}
    assert faults == {13: Fault("InvalidRequest", "thirteen", "prompt")}


async def test_pooled_jobs_are_limited() -> None:
    most, now, lock = [0], [0], threading.Lock()
    gate = threading.Event()

    def work(_: Any) -> Rendered:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
            if now[0] == 2:
                gate.set()
        gate.wait(10)
        with lock:
            now[0] -= 1
        return Rendered(0, b"")

    ends: Mailbox[JobDone] = open_mailbox(20)
    with ends.port, ends.inbox:
        async with anyio.create_task_group() as nursery:
            jobs = PooledJobs(work, nursery, ends.port.send_nowait, 2)
            for number in range(6):
                jobs.start(job(number))
    assert most == [2]


async def test_the_device_thread_does_one_job_after_the_other_in_one_thread() -> None:
    ends: Mailbox[JobDone] = open_mailbox(20)
    with ends.port, ends.inbox:
        thread = DeviceThread("device")
        with thread:
            for number in range(10, 16):
                thread.start(answer, job(number), ends.port.send_nowait)
            done = [await ends.inbox.receive() for _ in range(6)]
        await thread.join(10)
    assert [each.id for each in done] == list(range(10, 16))
    assert {each.value.tokens for each in done if isinstance(each.value, Rendered)} == {b"device"}
    assert not any(each.name == "device" for each in threading.enumerate())


async def test_even_a_panic_is_a_fault_and_the_thread_lives_on() -> None:
    ends: Mailbox[JobDone] = open_mailbox(2)
    with ends.port, ends.inbox:
        thread = DeviceThread("device")
        with thread:
            for number in (66, 67):
                thread.start(answer, job(number), ends.port.send_nowait)
            done = [await ends.inbox.receive() for _ in range(2)]
        await thread.join(10)
    assert [each.fault.kind if each.fault else None for each in done] == ["Panic", None]


async def test_what_is_queued_when_the_block_is_left_is_not_begun() -> None:
    begun, gate = threading.Event(), threading.Event()
    ran: list[int] = []

    def first(_: Any) -> Rendered:
        begun.set()
        gate.wait(10)
        return Rendered(0, b"")

    thread = DeviceThread("device")
    with thread:
        thread.start(first, job(1), lambda done: None)
        thread.start(lambda work: ran.append(1), job(2), lambda done: None)
        await anyio.to_thread.run_sync(begun.wait, 10)
    gate.set()
    await thread.join(10)
    assert ran == []


async def test_a_thread_that_does_not_end_in_time_is_warned_of() -> None:
    gate = threading.Event()
    thread = DeviceThread("device")
    with thread:
        thread.start(lambda work: gate.wait(10), job(1), lambda done: None)
        await anyio.to_thread.run_sync(lambda: None)
    with pytest.warns(ResourceWarning, match="device is still at work 0.01 s after"):
        await thread.join(0.01)
    gate.set()
    await thread.join(10)


async def test_a_call_returns_or_raises_what_the_function_does() -> None:
    thread = DeviceThread("device")
    with thread:
        assert await thread.call(lambda: threading.current_thread().name) == "device"
        with pytest.raises(ZeroDivisionError):
            await thread.call(lambda: 1 // 0)
    await thread.join(10)


def test_what_is_posted_after_the_end_of_the_loop_is_dropped(anyio_backend_name: str) -> None:
    async def make() -> Any:
        return poster()

    post = anyio.run(make, backend=anyio_backend_name)
    ran: list[int] = []
    post(lambda: ran.append(1))
    assert ran == []
