import math
import random
import tracemalloc
from dataclasses import dataclass
from typing import Any

import msgpack
import pytest
from hypothesis import given

from actorllm.errors import DecodeError
from actorllm.messages import (
    MESSAGES,
    Abort,
    Delta,
    Ending,
    Fault,
    Generate,
    Job,
    Limits,
    Message,
    NewRow,
    Question,
    Render,
    RunStep,
    Sampling,
    Submit,
    Text,
    TextPrompt,
    TextRules,
    Tokens,
    pack,
    pack_ids,
)
from actorllm.testing.strategies import message_of, messages
from actorllm.wire.codec import MAX_BYTES, Codec, decode, encode

QUESTION = Question(TextPrompt("Grüße"), Sampling(seed=7), Limits(stop_token_ids=(2, 3)), TextRules(("\n",)))
SAMPLES: list[Message] = [
    Generate(5, QUESTION),
    Job(1, Render(5, QUESTION)),
    Tokens(3, pack_ids([5, 6]), pack([1, 2]), (Ending(5, "error", None, Fault("RequestFailed", "no")),)),
    Text(3, (Delta(5, "a", pack([1])), Delta(6, "", pack([2]), "stop", "b"))),
    RunStep(3, 1, (NewRow(5, pack([1, 2]), 0, Sampling(0.5)),), b"", b"", b"", b"", b"", b""),
]
PARTS = Codec(MESSAGES)  # the types of `encode` and `decode` do not speak of parts of messages


def packed(*fields: Any) -> bytes:
    return bytes(msgpack.packb(fields))


@given(messages())
def test_every_message_comes_back_the_same(message: Message) -> None:
    decoded = decode(encode(message))
    assert decoded == message
    assert type(decoded) is type(message)


@pytest.mark.parametrize("cls", MESSAGES.values(), ids=lambda cls: cls.__name__)
def test_every_class_can_travel(cls: type[Any]) -> None:
    @given(message_of(cls))
    def travels(message: Any) -> None:
        decoded = decode(encode(message))
        assert repr(decoded) == repr(message)  # unlike ==, this tells 1 from True and from 1.0

    travels()


def test_the_layout_is_an_array_of_tag_and_fields() -> None:
    assert encode(Tokens(3, b"q", b"t", (Ending(5, "stop"),))) == packed(18, 3, b"q", b"t", [[17, 5, "stop"]])


def test_trailing_defaults_are_left_out() -> None:
    assert PARTS.encode(Ending(5, "stop")) == packed(17, 5, "stop")
    assert PARTS.encode(Ending(5, "stop", 2)) == packed(17, 5, "stop", 2)
    assert PARTS.encode(Ending(5, "stop", None, Fault("A", "b"))) == packed(
        17, 5, "stop", None, [1, "A", "b"]
    )
    assert PARTS.encode(Sampling()) == packed(5)


def test_a_value_that_only_equals_its_default_is_kept() -> None:
    @dataclass(frozen=True, slots=True)
    class Loose:
        value: bool | int = 1

    codec = Codec({1: Loose})
    assert codec.encode(Loose(True)) == packed(1, True)
    assert codec.decode(codec.encode(Loose(True))).value is True
    assert repr(PARTS.decode(PARTS.encode(Sampling(min_p=-0.0))).min_p) == "-0.0"


def test_an_old_recording_decodes_and_a_newer_one_is_refused() -> None:
    @dataclass(frozen=True, slots=True)
    class Old:
        step: int

    @dataclass(frozen=True, slots=True)
    class New:
        step: int
        urgent: bool = False

    old, new = Codec({1: Old}), Codec({1: New})
    assert new.decode(old.encode(Old(3))) == New(3)
    assert old.decode(new.encode(New(3))) == Old(3)
    with pytest.raises(DecodeError, match=r"^Old: 2 fields, at most 1 known$"):
        old.decode(new.encode(New(3, True)))


def test_a_float_field_takes_an_int_and_gives_a_float() -> None:
    decoded = PARTS.decode(packed(5, 1, 0, 1))
    assert decoded == Sampling(1.0, 0, 1.0)
    assert [type(decoded.temperature), type(decoded.top_k), type(decoded.top_p)] == [float, int, float]
    assert PARTS.encode(Sampling(2)) == packed(5, 2.0)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_floats_need_not_be_finite(value: float) -> None:
    decoded = PARTS.decode(PARTS.encode(Sampling(value)))
    assert repr(decoded.temperature) == repr(value)


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1])
def test_the_ends_of_int64_travel(value: int) -> None:
    assert decode(encode(Abort(value))) == Abort(value)


def test_lone_surrogates_travel() -> None:
    prompt = TextPrompt("half of a pair: \ud83d")
    assert PARTS.decode(PARTS.encode(prompt)) == prompt


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (
            [18, 1, b"", b"", [[17, 1, "stop"]] * 3 + [[17, 1, 5]]],
            r"Tokens.endings[3].finish_reason: expected str, got int",
        ),
        ([18, 1, b"", b"", [[12, 1]]], "Tokens.endings[0]: expected Ending, got Abort"),
        ([18, 1, b"", b"", [5]], "Tokens.endings[0]: expected Ending, got int"),
        ([18, 1, b"", b"", [[]]], "Tokens.endings[0]: expected a message, got an array without a tag"),
        ([18, 1, b"", b"", 5], "Tokens.endings: expected array, got int"),
        ([18, 1, b""], "Tokens.tokens: missing"),
        ([18, 1, "", b""], "Tokens.requests: expected bytes, got str"),
        ([18, 1, b"", b"", [], None, [], b"", b"", 0], "Tokens: 9 fields, at most 8 known"),
        ([12, True], "Abort.request: expected int, got bool"),
        ([12, 1.0], "Abort.request: expected int, got float"),
        ([12, None], "Abort.request: expected int, got None"),
        ([12, [1]], "Abort.request: expected int, got array"),
        ([12, {}], "Abort.request: expected int, got map"),
        ([12, 2**63], "Abort.request: expected an int within int64, got a larger one"),
        ([5, 2**63], "Sampling.temperature: expected an int within int64, got a larger one"),
        ([5, True], "Sampling.temperature: expected float, got bool"),
        ([6, None, [1, "a"]], "Limits.stop_token_ids[1]: expected int, got str"),
        ([19, 1, "", b"", "stop", 1.5], "Delta.stop_reason: expected str | int | None, got float"),
        (
            [9, 1, [8, [12, 1]]],
            "Generate.question.prompt: expected TextPrompt | TokenPrompt | Conversation, got Abort",
        ),
        ([9, 1, [8, [999]]], "Generate.question.prompt: unknown tag 999"),
        ([9, 1, [True, 1]], "Generate.question: expected a message, got an array without a tag"),
        ([999], "message: unknown tag 999"),
        ([-1], "message: unknown tag -1"),
        ([], "message: expected a message, got an array without a tag"),
        ([True, 1], "message: expected a message, got an array without a tag"),
        ([{}], "message: expected a message, got an array without a tag"),
    ],
)
def test_a_refusal_names_the_field(fields: list[Any], problem: str) -> None:
    with pytest.raises(DecodeError) as caught:
        decode(packed(*fields))
    assert str(caught.value) == problem


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x0c",
        b"\xa1a",
        b"\x80",
        packed(12, 1)[:-1],
        packed(12, 1) + b"\x00",
        b"\x92\x0c\xd4\x05\x00",
        b"\x92\x0c\xd6\xff\x00\x00\x00\x00",
        b"\x92\x0c\x81\x01\x02",
        b"\x93\x02\xa2\xc3\x28\xc3",
        b"\x91" * 5000,
        b"\x91" * 1000 + b"\xc0",
        b"\xdd\xff\xff\xff\xff" * 3000,
        b"\xdf\xff\xff\xff\xff" * 3000,
        b"\x92\x0c\xc6\xff\xff\xff\xff",
        b"\x92\x0c\xdb\xff\xff\xff\xff",
    ],
    ids=lambda data: data[:8].hex() or "empty",
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        decode(data)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        (Abort(True), "Abort.request: expected int, got bool"),
        (Abort(2**63), "Abort.request: expected an int within int64, got a larger one"),
        (Sampling(10**400), "Sampling.temperature: expected an int within int64, got a larger one"),
        (Limits(stop_token_ids=(1, "2")), "Limits.stop_token_ids[1]: expected int, got str"),  # type: ignore[arg-type]
        (Limits(stop_token_ids=[1]), "Limits.stop_token_ids: expected array, got list"),  # type: ignore[arg-type]
        (Tokens(1, b"", bytearray()), "Tokens.tokens: expected bytes, got bytearray"),  # type: ignore[arg-type]
        (Submit(1, b"", Abort(1), Limits()), "Submit.sampling: expected Sampling, got Abort"),  # type: ignore[arg-type]
        ({"request": 1}, "dict is not a message"),
    ],
)
def test_what_the_annotation_forbids_is_not_encoded(message: Any, problem: str) -> None:
    with pytest.raises(TypeError) as caught:
        encode(message)
    assert str(caught.value) == problem


def test_a_class_with_fields_that_cannot_travel_is_refused() -> None:
    @dataclass
    class Mapped:
        table: dict[str, int]

    @dataclass
    class Pair:
        both: tuple[int, int]

    @dataclass
    class Either:
        numbers: tuple[int, ...] | tuple[str, ...]

    with pytest.raises(TypeError, match="Mapped cannot travel: no place for dict"):
        Codec({1: Mapped})
    with pytest.raises(TypeError, match=r"Pair cannot travel: .* has a fixed length"):
        Codec({1: Pair})
    with pytest.raises(TypeError, match=r"Either cannot travel: array \| array is ambiguous"):
        Codec({1: Either})


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_mutated_encodings_give_a_message_or_a_decode_error(seed: int) -> None:
    rng = random.Random(seed)
    encodings = [encode(message) for message in SAMPLES]
    outcomes = {"message": 0, "refused": 0}
    for _ in range(20_000):
        outcomes[_outcome(_mutated(rng, rng.choice(encodings)))] += 1
    assert min(outcomes.values()) > 500, outcomes


@pytest.mark.slow
def test_random_bytes_give_a_message_or_a_decode_error_in_bounded_memory() -> None:
    rng = random.Random(5)
    tracemalloc.start()
    try:
        for _ in range(20_000):
            _outcome(rng.randbytes(rng.randrange(60)))
            _outcome(bytes(rng.choices(b"\xdc\xdd\xdf\xff\x93\x0c\x00\xc4", k=rng.randrange(60))))
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def _outcome(data: bytes) -> str:
    try:
        message = decode(data)
    except DecodeError:
        return "refused"
    assert type(message) in MESSAGES.values()
    assert repr(decode(encode(message))) == repr(message)
    return "message"


def _mutated(rng: random.Random, data: bytes) -> bytes:
    mutant = bytearray(data)
    for _ in range(rng.randrange(1, 4)):
        at = rng.randrange(len(mutant) + 1)
        match rng.randrange(4):
            case 0:
                mutant[at : at + 1] = rng.randbytes(1)
            case 1:
                del mutant[at : at + rng.randrange(1, 9)]
            case 2:
                mutant[at:at] = rng.randbytes(rng.randrange(1, 5))
            case _:
                mutant[at:at] = mutant[at : at + rng.randrange(1, 20)]
    return bytes(mutant)


@pytest.mark.parametrize("header", [b"\xdc\xff\xff", b"\xdd\x00\x0f\x00\x00", b"\xdd\xff\xff\xff\xff"])
def test_nested_arrays_that_claim_much_cost_little(header: bytes) -> None:
    hostile = header * 1000 + bytes(1_000_000)
    assert _peak_of_refusing(hostile) < 2 * len(hostile)


def test_small_hostile_arrays_cost_little() -> None:
    assert _peak_of_refusing(b"\xdc\x04\x00" * 341) < 3_000_000


def test_bytes_beyond_the_limit_are_not_looked_at() -> None:
    assert _peak_of_refusing(bytes(MAX_BYTES + 1)) < 10_000


def _peak_of_refusing(data: bytes) -> int:
    tracemalloc.start()
    try:
        with pytest.raises(DecodeError):
            decode(data)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
