"""The state of cores as bytes: all of it comes back, and nothing else can be in it."""

import collections
import os
import pickle
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
from actorllm.engine.record import shared_objects
from actorllm.engine.snapshot import load, save
from actorllm.messages import TextRules, Tokens, Track, pack, pack_ids

TOKENIZER = open_checkpoint("hash").tokenizer()
SHARED = shared_objects(TOKENIZER)


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
