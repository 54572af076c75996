import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from actorllm.checkpoint import RopeScaling
from actorllm.errors import UnsupportedModel
from actorllm.model.interpreter import rope_tables
from actorllm.model.rope import inverse_frequencies, rope

DIM, THETA, LENGTH = 32, 10000.0, 300


def frequencies(scaling: RopeScaling | None = None) -> NDArray[np.float64]:
    return inverse_frequencies(DIM, THETA, scaling)


YARN = 0.1 * math.log(4.0) + 1
CASES: dict[str, tuple[dict[str, Any], RopeScaling | None]] = {
    "default": ({"rope_type": "default"}, None),
    "linear": ({"rope_type": "linear", "factor": 4.0}, RopeScaling(kind="linear", factor=4.0)),
    "llama3": (
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        RopeScaling(kind="llama3", factor=8.0, original_max_position_embeddings=64),
    ),
    "yarn": (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        RopeScaling(kind="yarn", factor=4.0, original_max_position_embeddings=64, attention_factor=YARN),
    ),
    "yarn with its own bounds": (
        {
            "rope_type": "yarn",
            "factor": 4.0,
            "original_max_position_embeddings": 128,
            "beta_fast": 16.0,
            "beta_slow": 2.0,
            "attention_factor": 0.7,
        },
        RopeScaling(
            kind="yarn",
            factor=4.0,
            original_max_position_embeddings=128,
            attention_factor=0.7,
            beta_fast=16.0,
            beta_slow=2.0,
        ),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_tables_are_those_of_transformers(case: str) -> None:
    parameters, scaling = CASES[case]
    config = LlamaConfig(
        hidden_size=DIM,
        num_attention_heads=1,
        max_position_embeddings=LENGTH,
        rope_parameters={"rope_theta": THETA} | parameters,
    )
    theirs = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(LENGTH)[None])
    cos, sin = rope_tables(*rope(DIM, THETA, scaling), LENGTH)
    assert cos.shape == sin.shape == (LENGTH, 1, DIM)
    assert cos.dtype == sin.dtype == torch.float32
    sign = torch.tensor([-1.0, 1.0]).repeat_interleave(DIM // 2)
    torch.testing.assert_close(cos[:, 0], theirs[0][0], atol=5e-5, rtol=0)
    torch.testing.assert_close(sin[:, 0] * sign, theirs[1][0], atol=5e-5, rtol=0)


def test_factors_divide_each_frequency() -> None:
    factors = tuple(1.0 + i for i in range(DIM // 2))
    got = frequencies(RopeScaling(kind="factors", factors=factors))
    wanted = [THETA ** (-2 * i / DIM) / (1.0 + i) for i in range(DIM // 2)]
    assert got.dtype == np.float64
    assert got.tolist() == pytest.approx(wanted)


def test_the_factors_that_gguf_stores_for_llama3_mean_llama3() -> None:
    scaled = frequencies(RopeScaling(kind="llama3", factor=8.0, original_max_position_embeddings=64))
    factors = (frequencies() / scaled).astype(np.float32)
    stored = frequencies(RopeScaling(kind="factors", factors=tuple(factors.tolist())))
    np.testing.assert_allclose(stored, scaled, rtol=1e-6, atol=0)


def test_yarn_with_one_bound_is_a_step() -> None:
    scaling = RopeScaling(
        kind="yarn", factor=4.0, original_max_position_embeddings=1, beta_fast=9.0, beta_slow=8.0
    )
    got = frequencies(scaling) / frequencies()
    assert set(got.tolist()) <= {1.0, 0.25}


def test_an_unknown_scaling_is_unsupported() -> None:
    with pytest.raises(UnsupportedModel, match="dynamic"):
        rope(DIM, THETA, RopeScaling(kind="dynamic"))
