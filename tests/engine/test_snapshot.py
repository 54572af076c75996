"""The state of cores as bytes: all of it comes back, and nothing else can be in it."""

import collections
import os
import pickle
import struct
import subprocess
import threading
from collections.abc import Callable
from typing import Any

import pytest

from actorllm import DecodeError
from actorllm.checkpoint import open_checkpoint
from actorllm.cores.detokenizer import Detokenizer
from actorllm.cores.kvpool import KVPool
from actorllm.cores.renderer import Renderer
from actorllm.cores.requests import Status
from actorllm.cores.scheduler import Scheduler
from actorllm.engine.record import shared_objects
from actorllm.engine.snapshot import load, save
from actorllm.messages import TextRules, Tokens, Track, pack, pack_ids
from actorllm.testing.cycles import Cycles, Load
from actorllm.testing.grammars import SimulatedGrammars

TOKENIZER = open_checkpoint("hash").tokenizer()
SHARED = shared_objects(TOKENIZER, SimulatedGrammars())


def tracking(*tokens: int) -> Detokenizer:
    """A detokenizer in the middle of an answer."""
    core = Detokenizer(TOKENIZER)
    core.feed(Track(1, b"", TextRules(stop=("end",))))
    core.feed(Tokens(1, pack_ids([1] * len(tokens)), pack(tokens)))
    core.poll(0.0)
    return core


def test_a_core_goes_on_where_it_was() -> None:
    core = tracking(*"hé".encode()[:2], *b"e")
    other = load(save(core, SHARED), SHARED)
    for each in (core, other):
        each.feed(Tokens(2, pack_ids([1, 1, 1]), pack([0xA9, *b"nd"])))
    assert other.poll(1.0) == core.poll(1.0) != ()
    other.check()


def test_what_comes_from_the_checkpoint_is_not_in_it() -> None:
    data = save(tracking(1, 2, 3), SHARED)
    assert len(data) < 1000
    other: Any = load(data, SHARED)
    assert other._vocabulary is TOKENIZER
    assert other._tracked[1]._decoder._pieces is TOKENIZER.pieces


@pytest.mark.parametrize(
    "value", [threading.Lock(), lambda: 0, os.system, subprocess.Popen, (n for n in "a")]
)
def test_a_core_that_holds_something_foreign_is_named(value: Any) -> None:
    core: Any = KVPool(4, 16)
    core._foreign = {"deep": [value]}
    with pytest.raises(TypeError):
        save(core, SHARED)


class Runs:
    """Pickles as a call."""

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._call = function, arguments

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return self._call


def global_of(module: str, name: str) -> bytes:
    """A pickle that names this and calls it without arguments."""
    return b"\x80\x05\x8c%c%b\x8c%c%b\x93)R." % (len(module), module.encode(), len(name), name.encode())


@pytest.mark.parametrize(
    "data",
    [
        pickle.dumps(Runs(os.system, "exit 3")),
        pickle.dumps(Runs(eval, "1 / 0")),
        pickle.dumps(Runs(getattr, Renderer, "feed")),
        pickle.dumps([Runs(subprocess.Popen, ["true"])]),
        pickle.dumps(collections.ChainMap()),
        global_of("actorllm.cores.kvpool", "hashlib"),
        global_of("actorllm.cores.kvpool", "hashlib.blake2b"),
        global_of("actorllm.cores.kvpool", "deque"),
        global_of("actorllm.cores.frontend", "mix"),
        global_of("actorllm.cores.nowhere", "Core"),
        global_of("actorllm.cores.kvpool", "Nothing"),
        global_of("actorllm.actors.jobs", "DeviceThread"),
        global_of("actorllm.coresx", "Core"),
        global_of("builtins", "exec"),
    ],
)
def test_a_pickle_that_names_anything_else_is_refused_and_not_run(data: bytes) -> None:
    with pytest.raises(DecodeError):
        load(data, SHARED)


@pytest.mark.parametrize(
    "data",
    [b"", b"\x80", b"junk", pickle.dumps(5), pickle.dumps(Track(1, b"", TextRules())), b"\x80\x05K\x09Q."],
)
def test_bytes_that_are_no_core_are_refused(data: bytes) -> None:
    with pytest.raises(DecodeError):
        load(data, SHARED)


def test_every_cut_of_a_snapshot_is_refused() -> None:
    data = save(tracking(1, 2), SHARED)
    for end in range(len(data)):
        with pytest.raises(DecodeError):
            load(data[:end], SHARED)


KVPOOL = b"\x8c\x15actorllm.cores.kvpool\x8c\x06KVPool\x93"
RANGE = b"\x8c\x08builtins\x8c\x05range\x93"
DEQUE = b"\x8c\x0bcollections\x8c\x05deque\x93"
STATUS = b"\x8c\x17actorllm.cores.requests\x8c\x06Status\x93"
POLL = b"N}\x8c\x04poll" + RANGE + b"s\x86"
"""A state that sets `poll` by setattr."""


@pytest.mark.parametrize(
    "prefix",
    [
        pytest.param(KVPOOL + POLL + b"b", id="class"),
        pytest.param(KVPOOL + b"\x94h\x03" + POLL + b"b", id="class from the memo"),
        pytest.param(STATUS + b"K\x01\x85R" + POLL + b"b", id="member"),
        pytest.param(STATUS + b")\x81" + POLL + b"b", id="new member"),
        pytest.param(b"h\x00" + POLL + b"b", id="shared"),
        pytest.param(b"h\x00}\x8c\x03eosK\x05sb", id="attribute of a shared object"),
    ],
)
def test_what_was_there_before_cannot_be_given_attributes(prefix: bytes) -> None:
    before = dict(vars(KVPool)), dict(vars(Status)), dict(vars(TOKENIZER))
    data = save(tracking(1, 2), SHARED)
    with pytest.raises(DecodeError, match=r"it (changes|makes) a "):
        load(data[:2] + prefix + b"0" + data[2:], SHARED)
    with pytest.raises(DecodeError, match=r"it (changes|makes) a "):
        load(b"\x80\x05" + prefix + b".", SHARED)
    assert before == (dict(vars(KVPool)), dict(vars(Status)), dict(vars(TOKENIZER)))


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ([1], b"K\x02a"),
        ([1], b"(K\x02K\x03e"),
        ({1: 1}, b"K\x02K\x03s"),
        ({1: 1}, b"(K\x02K\x03u"),
        ({1}, b"(K\x02K\x03\x90"),
    ],
)
def test_a_shared_container_takes_no_items(target: Any, code: bytes) -> None:
    before = target.copy()
    with pytest.raises(DecodeError, match="as no recording does"):
        load(b"\x80\x05h\x00" + code + b".", (target,))
    assert target == before


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(KVPOOL + b")R", id="a call of an own class"),
        pytest.param(KVPOOL + b"K\x01\x85\x81", id="an instance with an argument"),
        pytest.param(KVPOOL + b"K\x01\x81", id="arguments that are no tuple"),
        pytest.param(KVPOOL + b"NR", id="no arguments"),
        pytest.param(RANGE + b")\x81", id="an instance of another kind"),
        pytest.param(RANGE + b"K\x01\x85R", id="a range of one number"),
        pytest.param(
            DEQUE + RANGE + b"K\x00\x8a\x05\x00\x00\x00\x00\x7fK\x01\x87R\x85R", id="a deque of 500 GB"
        ),
        pytest.param(DEQUE + b"K\x01\x85K\x05\x86R", id="a deque with contents"),
        pytest.param(STATUS + b"K\x63\x85R", id="no member"),
        pytest.param(b"K\x05)R", id="a call of a number"),
        pytest.param(b"K\x05)\x81", id="an instance of a number"),
        pytest.param(b")K\x05a", id="an item of a tuple"),
        pytest.param(b"}]K\x05s", id="a list as a key"),
        pytest.param(b"\x96" + struct.pack("<Q", 1 << 38), id="256 GB"),
        pytest.param(b"\x8e" + struct.pack("<Q", 1 << 62), id="4 EB of bytes"),
        pytest.param(b"\x8d" + struct.pack("<Q", 1 << 62), id="4 EB of text"),
        pytest.param(b"\x95" + struct.pack("<Q", 1 << 62), id="4 EB of opcodes"),
        pytest.param(b"Nr\xff\xff\xff\x7f", id="a memo of 16 GB"),
        pytest.param(b"\x82\x01", id="an extension"),
        pytest.param(b"K\x00Q", id="a persistent id"),
        pytest.param(RANGE + b"K\x01K\x02K\x03\x87R}\x8c\x01aK\x05sb", id="an attribute of a range"),
        pytest.param(b"\xff", id="no opcode"),
        pytest.param(b"}" + b")" + b"\x85" * 1_000_000 + b"Ns", id="a hash of a million tuples"),
        pytest.param(b"".join((DEQUE, b"\x94", b"".join([b"h\x00)R"] * 2), b"a")), id="a deque in a deque"),
    ],
)
def test_what_no_core_is_made_of_is_refused(data: bytes) -> None:
    with pytest.raises(DecodeError, match=r"[a-zA-Z]"):
        load(b"\x80\x05" + data + b".", ())


def test_a_class_is_never_a_value() -> None:
    core: Any = load(b"\x80\x05" + KVPOOL + b"\x94)\x81}\x8c\x04kindh\x00sb.", ())
    assert isinstance(core, KVPool)
    kind = vars(core)["kind"]
    assert not isinstance(kind, type)
    assert not callable(kind)


def test_the_parts_of_cores_come_back() -> None:
    core: Any = KVPool(4, 16)
    core.parts = parts = [
        collections.OrderedDict(a=1),
        collections.deque([1, (2, ())]),
        collections.deque([1], maxlen=3),
        range(1, 9, 3),
        list(Status),
        {"a": {1, 2}, "b": frozenset({(1, (2, 3))})},
        [None, True, False, 1.5, 2**70, -(2**15), 2**31 - 1, b"a" * 300, "é\ud800" * 300, b"b" * (1 << 17)],
    ]
    other: Any = load(save(core, ()), ())
    assert other.parts == parts
    assert other.parts[2].maxlen == 3
    assert all(member is Status[member.name] for member in other.parts[4])


def test_a_core_that_is_in_the_middle_of_much_comes_back() -> None:
    cycles = Cycles(Load(running=20, waiting=5, cached=50), 4)
    cycles.cycle()
    pool: Any = load(save(cycles.pool, ()), ())
    scheduler: Any = load(save(cycles.scheduler, ()), ())
    pool.check()
    scheduler.check()
    assert pool.statistics() == cycles.pool.statistics()
    assert type(scheduler) is Scheduler
    assert scheduler.statistics() == cycles.scheduler.statistics()
    cycles.pool, cycles.scheduler = pool, scheduler
    cycles.cycle()
    scheduler.check()
