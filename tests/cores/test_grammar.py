from actorllm.cores import NEVER
from actorllm.cores.grammar import Grammar, GrammarStatistics
from actorllm.messages import Compile, Drop, Fault, GrammarReady

FAULT = Fault(
    "InvalidRequest",
    "structured outputs are not available; leave structured_outputs out",
    "structured_outputs",
)


def test_every_compile_is_answered_in_order_and_only_once() -> None:
    core = Grammar()
    for message in (Compile(1, "a"), Drop(1), Compile(2, "b")):
        core.feed(message)
    assert not core.idle
    assert core.poll(0.0) == (GrammarReady(1, FAULT), GrammarReady(2, FAULT))
    assert core.poll(0.0) == ()
    core.check()
    assert core.idle
    assert core.deadline == NEVER
    assert core.statistics() == GrammarStatistics(num_refused=2)
