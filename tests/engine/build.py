"""Engines on the HashModel, and what they must answer."""

import random
from typing import Any

from actorllm import EngineConfig, SamplingParams
from actorllm.messages import Sampling
from actorllm.model.hash import naive_tokens

END = frozenset({256})


def config(**changes: Any) -> EngineConfig:
    """A small engine that checks itself after every turn."""
    fields: dict[str, Any] = {
        "model": "hash",
        "num_gpu_blocks_override": 64,
        "max_model_len": 256,
        "max_num_seqs": 8,
        "max_num_batched_tokens": 64,
        "seed": 0,
        "verify": True,
    }
    return EngineConfig(**(fields | changes))


def prompts(count: int, *, seed: int = 0, longest: int = 120) -> list[list[int]]:
    """Token prompts; every third shares a prefix with the others of its kind."""
    rng = random.Random(seed)
    shared = [rng.randrange(256) for _ in range(40)]
    made = []
    for index in range(count):
        own = [rng.randrange(256) for _ in range(rng.randrange(1, longest))]
        made.append((shared + own)[:longest] if index % 3 == 0 else own)
    return made


def expected(prompt: list[int], params: SamplingParams) -> list[int]:
    """The tokens that the HashModel owes."""
    sampling = params.sampling(Sampling())
    assert params.max_tokens is not None
    return list(naive_tokens(prompt, params.max_tokens, sampling, END, params.ignore_eos))


def text(tokens: list[int]) -> str:
    """The text of the HashModel's tokens, as it is shown."""
    return bytes(token for token in tokens if token < 256).decode(errors="replace")
