from actorllm import config
from actorllm.cores.policy import POLICIES, Fcfs
from actorllm.cores.requests import Request
from actorllm.messages import Limits, Sampling


def test_the_first_that_came_is_served_first_whatever_its_length() -> None:
    requests = [
        Request(9, [1] * length, length, Sampling(), Limits(), 8, arrival)
        for length, arrival in ((5, 2), (900, 0), (1, 1))
    ]
    assert [request.arrival for request in sorted(requests, key=Fcfs().key)] == [0, 1, 2]


def test_output_does_not_change_the_key() -> None:
    request = Request(9, [1, 2], 2, Sampling(), Limits(), 8, 3)
    before = Fcfs().key(request)
    request.tokens.append(5)
    assert Fcfs().key(request) == before == (3,)


def test_each_policy_that_can_be_configured_has_its_class() -> None:
    assert tuple(POLICIES) == config.POLICIES
    assert POLICIES["fcfs"] is Fcfs
