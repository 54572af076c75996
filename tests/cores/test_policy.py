from dataclasses import dataclass

import pytest

from actorllm import config
from actorllm.cores.policy import POLICIES, Deadline, Fair, Fcfs, Policy, Priority
from actorllm.cores.requests import Request
from actorllm.messages import Limits, Sampling, Terms


@dataclass
class Asked:
    """What a policy looks at."""

    arrival: int = 0
    num_prompt: int = 1
    num_output: int = 0
    priority: int = 0
    tenant: str = ""
    due: float = float("inf")


def order(policy: Policy, requests: list[Asked]) -> list[int]:
    ranked = sorted(
        requests, key=lambda each: (policy.level(policy.group(each)), policy.key(each), each.arrival)
    )
    return [each.arrival for each in ranked]


def test_first_come_first_served_whatever_the_length() -> None:
    requests = [Asked(2, num_prompt=5), Asked(0, num_prompt=900), Asked(1)]
    assert order(Fcfs(), requests) == [0, 1, 2]


def test_a_lower_priority_is_served_sooner_and_equals_by_arrival() -> None:
    requests = [Asked(0, priority=5), Asked(1, priority=-1), Asked(2, priority=5), Asked(3)]
    assert order(Priority(), requests) == [1, 3, 0, 2]


def test_the_earliest_deadline_is_served_first_and_those_without_one_last() -> None:
    requests = [Asked(0), Asked(1, due=9.0), Asked(2, due=3.0), Asked(3)]
    assert order(Deadline(), requests) == [2, 1, 0, 3]


def test_the_tenant_that_has_had_least_goes_first() -> None:
    policy = Fair()
    greedy, modest = Asked(0, tenant="a"), Asked(1, tenant="b")
    for request in (greedy, modest):
        policy.arrive(request)
    policy.serve(greedy, 10)
    policy.serve(modest, 3)
    assert order(policy, [greedy, modest]) == [1, 0]
    policy.serve(modest, 8)
    assert order(policy, [greedy, modest]) == [0, 1]


def test_a_tenant_of_twice_the_weight_gets_twice_as_much() -> None:
    policy = Fair({"a": 2.0})
    heavy, light = Asked(0, tenant="a"), Asked(1, tenant="b")
    for request in (heavy, light):
        policy.arrive(request)
    policy.serve(heavy, 20)
    policy.serve(light, 10)
    assert policy.level("a") == policy.level("b") == 10


def test_a_tenant_that_rested_does_not_keep_what_it_has_not_used() -> None:
    policy = Fair()
    busy, late = Asked(0, tenant="a"), Asked(1, tenant="b")
    policy.arrive(busy)
    policy.serve(busy, 1000)
    policy.arrive(late)
    assert policy.level("b") == 1000


def test_a_tenant_that_left_and_comes_back_is_charged_for_what_it_had() -> None:
    policy = Fair()
    busy, greedy = Asked(0, tenant="a"), Asked(1, tenant="b")
    policy.arrive(busy)
    policy.arrive(greedy)
    policy.serve(greedy, 50)
    policy.leave(greedy)
    policy.arrive(Asked(2, tenant="b"))
    assert policy.level("b") == 50


def test_tenants_that_owe_nothing_are_forgotten() -> None:
    policy = Fair()
    requests = [Asked(number, tenant=str(number)) for number in range(100)]
    for request in requests:
        policy.arrive(request)
        policy.serve(request, 5)
        policy.leave(request)
    assert [policy.level(str(number)) for number in range(100)] == [0.0] * 100


@pytest.mark.parametrize("policy", [each() for each in POLICIES.values()], ids=list(POLICIES))
def test_output_does_not_change_the_key(policy: Policy) -> None:
    request = Request(9, [1, 2], 2, Sampling(), Limits(), 10, 3, terms=Terms(priority=2, tenant="a"))
    before = policy.key(request)
    request.tokens.append(5)
    assert policy.key(request) == before


def test_each_policy_that_can_be_configured_has_its_class() -> None:
    assert tuple(POLICIES) == config.POLICIES
    assert POLICIES["fcfs"] is Fcfs
