"""Grammars in the engine: what comes obeys them, and they cost nobody else anything."""

import json
import re
import threading
from collections.abc import Callable
from typing import Any

import anyio
import pytest

from actorllm import Engine, EngineConfig, InvalidRequest, Parts, RequestOutput, SamplingParams, Tap
from actorllm.actors.worker import open_runner
from actorllm.checkpoint import Checkpoint
from actorllm.engine.parts import open_grammars
from actorllm.messages import RunStep, Sampled, SampleStep

from .build import together
from .models import small_model
from .test_tap import Ear

pytestmark = [pytest.mark.anyio, pytest.mark.slow]

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"enum": [1, 20, 300]}},
    "required": ["name", "age"],
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(small_model(tmp_path_factory.mktemp("model")))


def config(model: str, **changes: Any) -> EngineConfig:
    fields: dict[str, Any] = {"model": model, "verify": True, "max_num_seqs": 16, "seed": 0}
    return EngineConfig(**(fields | changes))


def params(**fields: Any) -> SamplingParams:
    return SamplingParams(**({"max_tokens": 60, "temperature": 1.0, "seed": 3} | fields))


def is_person(text: str) -> bool:
    found = json.loads(text)
    return len(found["name"]) <= 8 and found["age"] in (1, 20, 300)


CASES: dict[str, tuple[dict[str, Any], Callable[[str], bool]]] = {
    "json": ({"json": PERSON}, is_person),
    "json text": ({"json": json.dumps(PERSON)}, is_person),
    "regex": ({"regex": "(yes|no)[0-9]{2,5}"}, lambda text: bool(re.fullmatch("(yes|no)[0-9]{2,5}", text))),
    "choice": ({"choice": ["yes", "no", "日本"]}, lambda text: text in ("yes", "no", "日本")),
    "grammar": (
        {"grammar": 'root ::= "a" root "b" | "ab"'},
        lambda text: bool(re.fullmatch("(a+)(b+)", text)),
    ),
}


@pytest.mark.parametrize("case", CASES)
async def test_every_answer_obeys_its_grammar(case: str, model: str) -> None:
    grammar, obeys = CASES[case]
    async with Engine(config(model)) as engine:
        stream = engine.generate("x", params(n=8, structured_outputs=grammar))
        answer = await stream
        await engine.check()
    for one in answer.outputs:
        assert one.finish_reason == "length" or obeys(one.text), one
    assert sum(one.finish_reason == "stop" for one in answer.outputs) >= 6
    assert len({one.text for one in answer.outputs}) > 1


async def ask_all(engine: Engine, asked: list[SamplingParams]) -> list[RequestOutput]:
    return await together(
        engine, [engine.generate(f"{index}: " + "x" * 40, each) for index, each in enumerate(asked)]
    )


MODES: dict[str, dict[str, Any]] = {
    "one step in flight": {"steps_in_flight": 1},
    "in chunks": {"max_num_batched_tokens": 20, "long_prefill_token_threshold": 9},
    "tight": {"num_gpu_blocks_override": 14, "max_model_len": 224},
}


@pytest.mark.parametrize("mode", MODES)
async def test_the_schedule_changes_nothing(mode: str, model: str) -> None:
    """Constrained requests among free ones; in bfloat16 the native kernels compute the same in any batch."""
    grammars = [None, {"json": PERSON}, {"regex": "[a-f]{5,30}"}, {"choice": ["yes", "no"]}]
    asked = [params(seed=index, structured_outputs=grammars[index % 4]) for index in range(12)]
    async with Engine(config(model)) as engine:
        whole = await ask_all(engine, asked)
    async with Engine(config(model, **MODES[mode])) as engine:
        again = await ask_all(engine, asked)
        preempted = (await engine.statistics())["kvpool"]["preemptions"]
    assert [answer.token_ids for answer in again] == [answer.token_ids for answer in whole]
    assert (preempted > 0) is (mode == "tight")


async def test_it_works_together_with_everything_else(model: str) -> None:
    both = {"regex": "[ab]{4,8}"}
    together = {
        "min_tokens": 6,
        "repetition_penalty": 1.2,
        "bad_words": ["bb"],
        "logit_bias": {ord("c"): 100.0},
        "top_p": 0.9,
        "logprobs": 2,
        "n": 3,
    }
    async with Engine(config(model)) as engine:
        answer = await engine.generate("x", params(structured_outputs=both, **together))
        stopped = await engine.generate("x", params(structured_outputs={"regex": "a{9}b"}, stop="aaa"))
    for one in answer.outputs:
        assert re.fullmatch("[ab]{4,8}", one.text)
        assert len(one.token_ids) >= 4
        assert one.logprobs is not None
        assert len(one.logprobs) == len(one.token_ids)
    assert (stopped.text, stopped.outputs[0].stop_reason) == ("", "aaa")


async def test_the_grammar_decides_where_the_others_leave_nothing(model: str) -> None:
    grammar = {"choice": ["yes"]}
    async with Engine(config(model)) as engine:
        early = await engine.generate("x", params(structured_outputs=grammar, min_tokens=50))
        banned = await engine.generate("x", params(structured_outputs=grammar, allowed_token_ids=[ord("n")]))
    assert (early.text, early.finish_reason) == ("yes", "stop")
    assert (banned.text, banned.finish_reason) == ("yes", "stop")


async def test_what_comes_before_the_marker_is_free(model: str) -> None:
    grammar = {"choice": ["yes", "no"], "start_after": "the"}
    forced = params(structured_outputs=grammar, logit_bias={257: 12.0}, max_tokens=200)
    async with Engine(config(model)) as engine:
        answer = await engine.generate("x", forced)
    _, marker, after = answer.text.partition("the")
    assert marker
    assert after in ("yes", "no")
    assert answer.finish_reason == "stop"


@pytest.mark.parametrize(
    ("grammar", "message", "param"),
    [
        ({"json": {"type": "array", "uniqueItems": True}}, "uniqueItems", "structured_outputs.json"),
        ({"regex": "(a"}, "regex", "structured_outputs.regex"),
        ({"grammar": "root ::= missing"}, "missing", "structured_outputs.grammar"),
    ],
)
async def test_a_grammar_that_cannot_be_compiled_fails_its_request_alone(
    grammar: dict[str, Any], message: str, param: str, model: str
) -> None:
    async with Engine(config(model)) as engine:
        other = engine.generate("x", params(structured_outputs={"choice": ["yes"]}))
        with pytest.raises(InvalidRequest, match=message) as caught:
            await engine.generate("x", params(structured_outputs=grammar))
        assert caught.value.param == param
        assert (await other).text == "yes"
        await engine.check()


class Overlapping:
    """A runner whose forward pass of a step that waits ends only when the step's masks have been said."""

    def __init__(self, runner: Any, said: "Said") -> None:
        self._runner = runner
        self._said = said

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)

    def execute(self, step: RunStep) -> Sampled | None:
        done: Sampled | None = self._runner.execute(step)
        assert not step.waits or self._said.wait(step.step), "the masks wait for the end of the forward pass"
        return done


class Said(Ear):
    """Which steps' masks Grammar has said."""

    def __init__(self) -> None:
        super().__init__()
        self._steps: set[int] = set()
        self._changed = threading.Condition()

    def feed(self, message: Any) -> None:
        super().feed(message)
        with self._changed:
            self._steps.add(message.step)
            self._changed.notify_all()

    def wait(self, step: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: step in self._steps, 30)

    def statistics(self) -> Any:
        return EngineConfig()


@pytest.mark.parametrize("steps_in_flight", [1, 2])
async def test_masks_are_filled_while_the_step_runs(steps_in_flight: int, model: str) -> None:
    said = Said()

    def make(checkpoint: Checkpoint, config: EngineConfig) -> Any:
        return Overlapping(open_runner(checkpoint, config), said)

    parts = Parts(open_runner=make, taps=(Tap(said, (SampleStep,), capacity=1000),))
    async with Engine(config(model, steps_in_flight=steps_in_flight), parts=parts) as engine:
        answer = await engine.generate("x", params(structured_outputs={"regex": "[a-f]{20}"}))
        await engine.check()
    assert re.fullmatch("[a-f]{20}", answer.text)
    assert len({message.step for message in said.heard}) >= 20 // max(map(len, ("ab", "aba")))


class Slow:
    """Grammars of which one is compiled only when the gate opens."""

    def __init__(self, grammars: Any, gate: threading.Event) -> None:
        self._grammars = grammars
        self._gate = gate

    def __getattr__(self, name: str) -> Any:
        return getattr(self._grammars, name)

    def compile(self, grammar: str) -> None:
        if "slow" in grammar:
            assert self._gate.wait(60)
        self._grammars.compile(grammar)


async def test_a_slow_compilation_delays_only_its_own_request(model: str) -> None:
    gate = threading.Event()
    parts = Parts(grammars=lambda checkpoint: Slow(open_grammars(checkpoint), gate))
    slow: list[RequestOutput] = []
    async with Engine(config(model), parts=parts) as engine, anyio.create_task_group() as nursery:

        async def ask_slowly() -> None:
            slow.append(await engine.generate("x", params(structured_outputs={"choice": ["slow"]})))

        nursery.start_soon(ask_slowly)
        free = await engine.generate("x", params())
        quick = await engine.generate("x", params(structured_outputs={"choice": ["yes"]}))
        assert (await engine.statistics())["grammar"]["num_compiling"] == 1
        assert (len(free.token_ids), quick.text, slow) == (60, "yes", [])
        gate.set()
    assert slow[0].text == "slow"


async def test_a_grammar_that_takes_too_long_fails_its_request(model: str) -> None:
    gate = threading.Event()
    parts = Parts(grammars=lambda checkpoint: Slow(open_grammars(checkpoint), gate))
    async with Engine(config(model, structured_outputs_timeout=0.05), parts=parts) as engine:
        with pytest.raises(InvalidRequest, match="still being compiled, after"):
            await engine.generate("x", params(structured_outputs={"choice": ["slow"]}))
        gate.set()
        await engine.check()
