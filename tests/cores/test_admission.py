"""Admission: who finds a free seat is not queued, and only time with work in it tells how fast work is."""

import pytest

from actorllm.cores.admission import Admission
from actorllm.cores.requests import Request
from actorllm.messages import Limits, Sampling


def request(number: int, prompt: int = 1) -> Request:
    return Request(number, [7] * prompt, prompt, Sampling(), Limits(), prompt + 4, number)


def arrive(admission: Admission, *prompts: int) -> str:
    """Requests with prompts of these lengths come; which are let in (+), and which refused (-)."""
    told = ""
    for prompt in prompts:
        coming = request(admission.num_refused + admission.num_requests + admission.num_begun, prompt)
        let_in = admission.refusal(coming) is None
        if let_in:
            admission.enter(coming)
        told += "+" if let_in else "-"
    return told


def test_what_could_run_at_once_is_not_queued() -> None:
    assert arrive(Admission(8, max_requests=2), *[1] * 12) == "++++++++++--"
    assert arrive(Admission(3, max_tokens=20), 15, 15, 15, 15, 5, 1) == "+++++-"


def test_a_seat_that_is_taken_is_not_free() -> None:
    admission = Admission(2, max_requests=1)
    first = request(100)
    admission.enter(first)
    assert arrive(admission, 1, 1, 1) == "++-"
    admission.begin(first)
    assert arrive(admission, 1) == "-"
    admission.leave(first)
    assert (admission.num_begun, admission.num_requests) == (0, 2)
    assert arrive(admission, 1, 1) == "+-"


def test_the_first_that_queues_may_be_of_any_length() -> None:
    assert arrive(Admission(1, max_tokens=10), 50, 50, 1) == "++-"


def test_tokens_of_those_who_left_do_not_count() -> None:
    admission = Admission(1, max_tokens=10)
    admission.enter(gone := request(100, 9))
    assert arrive(admission, 10, 1) == "+-"
    admission.leave(gone)
    assert (admission.num_tokens, arrive(admission, 10, 1)) == (10, "+-")


def working(admission: Admission, seconds_per_token: float) -> float:
    """Steps of 10 tokens each, one after the other, begin when the clock shows 0; when they end."""
    admission.worked(0.0, 0, is_busy=True)
    for step in range(1, 11):
        admission.worked(10 * step * seconds_per_token, 10 * step, is_busy=step < 10)
    return 100 * seconds_per_token


def test_a_hint_is_the_time_that_the_waiting_tokens_take() -> None:
    admission = Admission(1)
    assert admission.retry_after == 1.0
    working(admission, 0.25)
    arrive(admission, 30, 50)
    assert admission.retry_after == 20.0


def test_idle_time_is_not_the_time_of_steps() -> None:
    admission = Admission(1)
    end = working(admission, 0.25)
    for later in range(100):
        admission.worked(end + 3600 + later, 100, is_busy=False)
    admission.worked(end + 9000.0, 100, is_busy=True)
    admission.worked(end + 9002.5, 110, is_busy=False)
    arrive(admission, 80)
    assert admission.retry_after == 20.0


@pytest.mark.parametrize(("tokens", "hint"), [(1, 1.0), (10**6, 60.0)])
def test_a_hint_is_neither_short_nor_endless(tokens: int, hint: float) -> None:
    admission = Admission(1)
    working(admission, 0.25)
    arrive(admission, tokens)
    assert admission.retry_after == hint
