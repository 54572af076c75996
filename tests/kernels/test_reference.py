import math

import actorllm_kernels.reference as kernels
import pytest
import torch
from torch import Tensor

BLOCK_SIZE, NUM_BLOCKS, NUM_HEADS, NUM_KV_HEADS, HEAD_DIM = 4, 120, 6, 2, 8


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def test_embedding_takes_rows() -> None:
    weight = random(5, 3)
    got = kernels.embedding(torch.tensor([4, 0, 4], dtype=torch.int32), weight)
    assert torch.equal(got, torch.stack([weight[4], weight[0], weight[4]]))


def test_linear_is_a_product_with_the_transposed_weight() -> None:
    x, weight, bias = random(3, 4), random(5, 4, seed=1), random(5, seed=2)
    wanted = (x[:, None, :] * weight).sum(-1)
    torch.testing.assert_close(kernels.linear(x, weight), wanted)
    torch.testing.assert_close(kernels.linear(x, weight, bias), wanted + bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_packed_weight_gives_the_same_product(dtype: torch.dtype) -> None:
    weight, bias = random(24, 32, seed=1).to(dtype), random(24, seed=2).to(dtype)
    packed = kernels.pack_linear(weight)
    for rows in (1, 5):
        x = random(rows, 32).to(dtype)
        torch.testing.assert_close(kernels.linear(x, packed), kernels.linear(x, weight))
        torch.testing.assert_close(kernels.linear(x, packed, bias), kernels.linear(x, weight, bias))


def test_rms_norm_divides_by_the_root_of_the_mean_square() -> None:
    got = kernels.rms_norm(torch.tensor([[3.0, 4.0]]), torch.tensor([1.0, 2.0]), 0.5, torch.float32)
    assert got.tolist() == [[pytest.approx(3 / math.sqrt(13)), pytest.approx(8 / math.sqrt(13))]]


def test_rms_norm_of_half_precision_is_computed_in_float32_and_rounded_once() -> None:
    x, weight = random(7, 64).bfloat16(), random(64, seed=1)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight
    got = kernels.rms_norm(x, weight, 1e-5, torch.bfloat16)
    assert got.dtype == torch.bfloat16
    assert torch.equal(got, exact.float().bfloat16())


def test_silu_and_mul_gates_the_second_half_with_the_first() -> None:
    x = torch.tensor([[1.0, -2.0, 3.0, 5.0]])
    wanted = [3 / (1 + math.exp(-1)), -10 / (1 + math.exp(2))]
    assert kernels.silu_and_mul(x).tolist() == [pytest.approx(wanted)]
    assert x.tolist() == [[1.0, -2.0, 3.0, 5.0]]


def test_gelu_and_mul_gates_the_second_half_with_the_first() -> None:
    x = torch.tensor([[1.0, -2.0, 3.0, 5.0]])
    inner = [math.sqrt(2 / math.pi) * (gate + 0.044715 * gate**3) for gate in (1.0, -2.0)]
    wanted = [0.5 * (1 + math.tanh(inner[0])) * 3, -1 * (1 + math.tanh(inner[1])) * 5]
    assert kernels.gelu_tanh_and_mul(x).tolist() == [pytest.approx(wanted, rel=1e-5)]
    assert x.tolist() == [[1.0, -2.0, 3.0, 5.0]]


def test_soft_cap_is_a_tangent_and_keeps_the_dtype() -> None:
    x = torch.tensor([0.5, -100.0], dtype=torch.bfloat16)
    got = kernels.soft_cap(x, 5.0)
    assert got.dtype == torch.bfloat16
    assert got.tolist() == [pytest.approx(5 * math.tanh(0.1), rel=4e-3), -5.0]
    assert x.tolist() == [0.5, -100.0]


def test_rotary_embedding_turns_each_pair_by_its_angle() -> None:
    x, angles = random(3, 2, HEAD_DIM), random(3, HEAD_DIM // 2, seed=1)
    cos = torch.cat((angles.cos(), angles.cos()), -1)[:, None]
    sin = torch.cat((-angles.sin(), angles.sin()), -1)[:, None]
    got = x.clone()
    kernels.rotary_embedding(got, cos, sin)
    for token in range(3):
        for head in range(2):
            for i in range(HEAD_DIM // 2):
                pair = complex(x[token, head, i], x[token, head, i + HEAD_DIM // 2])
                angle = float(angles[token, i])
                turned = pair * complex(math.cos(angle), math.sin(angle))
                assert got[token, head, i].item() == pytest.approx(turned.real, abs=1e-5)
                assert got[token, head, i + HEAD_DIM // 2].item() == pytest.approx(turned.imag, abs=1e-5)


def test_write_kv_changes_only_its_slots() -> None:
    cache = random(3, BLOCK_SIZE, 2, NUM_KV_HEADS, HEAD_DIM)
    before, new = cache.clone(), random(2, 2, NUM_KV_HEADS, HEAD_DIM, seed=1)
    kernels.write_kv(new, cache, torch.tensor([9, 2]))
    before[2, 1], before[0, 2] = new[0], new[1]
    assert torch.equal(cache, before)


def dense(
    query: Tensor, keys: Tensor, values: Tensor, start: int, scale: float, window: int, cap: float
) -> Tensor:
    """Attention of one row, one token and one head at a time, in float64."""
    out = torch.zeros(query.shape, dtype=torch.float64)
    for token in range(query.shape[0]):
        position = start + token
        low = max(0, position - window + 1)
        for head in range(NUM_HEADS):
            kv = head // (NUM_HEADS // NUM_KV_HEADS)
            seen = keys[low : position + 1, kv].double()
            scores = seen @ query[token, head].double() * scale
            weights = torch.softmax(cap * torch.tanh(scores / cap) if cap else scores, 0)
            out[token, head] = weights @ values[low : position + 1, kv].double()
    return out.flatten(1).float()


ROWS = {
    "decode alone": [(1, 9)],
    "decode of like lengths": [(1, 9), (1, 12), (1, 10)],
    "decode of unlike lengths": [(1, 30), (1, 1), (1, 5), (1, 17)],
    "prefill": [(7, 7)],
    "prefill of equal lengths": [(5, 5), (5, 5)],
    "chunk": [(6, 14)],
    "long prefill": [(300, 310), (1, 4), (128, 128)],
    "mixture": [(1, 9), (6, 14), (1, 3), (3, 3), (1, 16)],
}


@pytest.mark.parametrize(("window", "cap"), [(0, 0.0), (5, 0.0), (0, 0.8), (5, 0.8)])
@pytest.mark.parametrize("rows", ROWS)
def test_paged_attention_is_dense_attention(rows: str, window: int, cap: float) -> None:
    generator = torch.Generator().manual_seed(3)
    cache = random(NUM_BLOCKS, BLOCK_SIZE, 2, NUM_KV_HEADS, HEAD_DIM, seed=5)
    free = torch.randperm(NUM_BLOCKS, generator=generator).tolist()
    tables = [[free.pop() for _ in range(-(-seq_len // BLOCK_SIZE))] for _, seq_len in ROWS[rows]]
    unseen = torch.ones(NUM_BLOCKS, BLOCK_SIZE, dtype=torch.bool)
    for (query_len, seq_len), table in zip(ROWS[rows], tables, strict=True):
        for place in range(max(0, seq_len - query_len + 1 - window) if window else 0, seq_len):
            unseen[table[place // BLOCK_SIZE], place % BLOCK_SIZE] = False
    cache[unseen] = math.nan
    width = max(map(len, tables))
    begins = torch.tensor([0, *(query_len for query_len, _ in ROWS[rows])]).cumsum(0).int()
    query = random(int(begins[-1]), NUM_HEADS, HEAD_DIM, seed=6)
    plan = kernels.plan_attention(
        begins,
        torch.tensor([seq_len for _, seq_len in ROWS[rows]], dtype=torch.int32),
        torch.tensor([(table + [0] * width)[:width] for table in tables], dtype=torch.int32),
        BLOCK_SIZE,
        torch.float32,
        NUM_HEADS // NUM_KV_HEADS,
        window,
    )
    got = kernels.paged_attention(query, cache, plan, 0.3, cap)
    for index, ((query_len, seq_len), table) in enumerate(zip(ROWS[rows], tables, strict=True)):
        own = slice(int(begins[index]), int(begins[index]) + query_len)
        keys, values = cache[table].flatten(0, 1).unbind(1)
        wanted = dense(query[own], keys, values, seq_len - query_len, 0.3, window or 1000, cap)
        torch.testing.assert_close(got[own], wanted)


def test_early_tokens_of_a_long_row_do_not_look_at_late_keys() -> None:
    plan = kernels.plan_attention(
        torch.tensor([0, 512]), torch.tensor([512]), torch.arange(128)[None], BLOCK_SIZE, torch.float32, 2
    )
    assert sorted((group.num_rows, *group.mask.shape[2:]) for group in plan.groups) == [
        (1, 256, 128),
        (1, 256, 256),
        (2, 256, 512),
    ]


def test_rows_of_unlike_context_are_not_padded_beyond_twice_their_length() -> None:
    plan = kernels.plan_attention(
        torch.arange(5), torch.tensor([64, 5, 6, 40]), torch.zeros(4, 16), BLOCK_SIZE, torch.float32, 2
    )
    assert sorted((group.num_rows, group.mask.shape[-1]) for group in plan.groups) == [(2, 8), (2, 64)]
