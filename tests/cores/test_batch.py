import itertools
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorllm.cores.batch import Batch, BatchStatistics
from actorllm.cores.inputs import StepInputs
from actorllm.messages import NewRow, RunStep, Sampling, pack, pack_ids

GREEDY = Sampling(temperature=0.0)


def step(
    rows: list[tuple[int, int, bool, list[int]]] | None = None,
    new: tuple[NewRow, ...] = (),
    finished: list[int] | None = None,
) -> RunStep:
    """A RunStep of (request, num_tokens, samples, new blocks) rows."""
    rows = rows or []
    return RunStep(
        step=0,
        epoch=0,
        new=new,
        rows=pack_ids(row[0] for row in rows),
        num_tokens=pack(row[1] for row in rows),
        samples=bytes(row[2] for row in rows),
        num_blocks=pack(len(row[3]) for row in rows),
        blocks=pack(block for row in rows for block in row[3]),
        finished=pack_ids(finished or []),
    )


def new_row(request: int, tokens: list[int], num_computed: int = 0, sampling: Sampling = GREEDY) -> NewRow:
    return NewRow(request, pack(tokens), num_computed, sampling)


def test_a_prompt_is_laid_out_over_its_blocks() -> None:
    batch = Batch(max_num_seqs=2, max_model_len=16, block_size=4)
    inputs = batch.apply(step([(7, 6, True, [5, 2])], (new_row(7, [10, 11, 12, 13, 14, 15]),)))
    assert inputs.input_ids.tolist() == [10, 11, 12, 13, 14, 15]
    assert inputs.positions.tolist() == [0, 1, 2, 3, 4, 5]
    assert inputs.slot_mapping.tolist() == [[20, 21, 22, 23, 8, 9]]
    assert inputs.query_start_loc.tolist() == [0, 6]
    assert inputs.seq_lens.tolist() == [6]
    assert inputs.block_table.tolist() == [[[5, 2]]]
    assert inputs.sample_rows.tolist() == [0]
    assert inputs.logits_indices.tolist() == [5]
    assert inputs.position.tolist() == [6]


def test_a_mixed_step_stands_row_after_row() -> None:
    batch = Batch(max_num_seqs=4, max_model_len=16, block_size=4)
    batch.apply(step([(1, 3, True, [0])], (new_row(1, [20, 21, 22]),)))
    batch.append([23])
    drawn = Sampling(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=-4)
    new = (new_row(2, [30, 31, 32, 33, 34, 35]), new_row(3, [40, 41, 42, 43, 44], 4, drawn))
    inputs = batch.apply(step([(2, 4, False, [6]), (1, 1, True, []), (3, 1, True, [6, 1])], new))
    assert inputs.input_ids.tolist() == [30, 31, 32, 33, 23, 44]
    assert inputs.positions.tolist() == [0, 1, 2, 3, 3, 4]
    assert inputs.slot_mapping.tolist() == [[24, 25, 26, 27, 3, 4]]
    assert inputs.query_start_loc.tolist() == [0, 4, 5, 6]
    assert inputs.seq_lens.tolist() == [4, 4, 5]
    assert inputs.block_table.tolist() == [[[6, 0], [0, 0], [6, 1]]]
    assert inputs.sample_rows.tolist() == [1, 2]
    assert inputs.logits_indices.tolist() == [4, 5]
    assert inputs.temperature.tolist() == [0.0, 0.5]
    assert inputs.top_k.tolist() == [0, 3]
    assert inputs.top_p.tolist() == [1.0, np.float32(0.9)]
    assert inputs.min_p.tolist() == [0.0, np.float32(0.1)]
    assert inputs.seed.tolist() == [0, -4]
    assert inputs.position.tolist() == [4, 5]


def test_the_types_are_those_the_docstring_promises() -> None:
    batch = Batch(max_num_seqs=1, max_model_len=8, block_size=2)
    for inputs in (batch.apply(step([(1, 2, False, [3])], (new_row(1, [5, 6, 7]),))), batch.apply(step())):
        for name in ("input_ids", "query_start_loc", "seq_lens", "block_table", "top_k"):
            assert getattr(inputs, name).dtype == np.int32
        for name in ("positions", "slot_mapping", "sample_rows", "logits_indices", "seed", "position"):
            assert getattr(inputs, name).dtype == np.int64
        for name in ("temperature", "top_p", "min_p"):
            assert getattr(inputs, name).dtype == np.float32


def test_an_empty_step_lets_the_finished_go() -> None:
    batch = Batch(max_num_seqs=1, max_model_len=8, block_size=4)
    batch.apply(step([(1, 2, True, [3])], (new_row(1, [5, 6]),)))
    batch.append([7])
    assert len(batch) == 1
    assert batch.statistics() == BatchStatistics(num_rows=1, num_tokens=3, num_blocks=1, num_steps=1)
    inputs = batch.apply(step(finished=[1]))
    assert inputs.input_ids.size == 0
    assert inputs.query_start_loc.tolist() == [0]
    assert inputs.block_table.shape == (1, 0, 0)
    assert len(batch) == 0
    assert batch.statistics() == BatchStatistics(num_rows=0, num_tokens=0, num_blocks=0, num_steps=2)


def test_a_finished_row_makes_room_in_the_same_step_even_for_its_own_return() -> None:
    batch = Batch(max_num_seqs=1, max_model_len=8, block_size=4)
    batch.apply(step([(1, 2, True, [3])], (new_row(1, [5, 6]),)))
    batch.append([7])
    inputs = batch.apply(step([(1, 3, True, [0])], (new_row(1, [5, 6, 7]),), finished=[1]))
    assert inputs.input_ids.tolist() == [5, 6, 7]
    assert inputs.slot_mapping.tolist() == [[0, 1, 2]]


def test_reset_forgets_everything() -> None:
    batch = Batch(max_num_seqs=1, max_model_len=8, block_size=4)
    batch.apply(step([(1, 2, True, [3])], (new_row(1, [5, 6]),)))
    batch.reset()
    batch.check()
    assert len(batch) == 0
    inputs = batch.apply(step([(2, 1, False, [1])], (new_row(2, [8, 9]),)))
    assert inputs.block_table.tolist() == [[[1]]]


ONE = (new_row(1, [5, 6, 7]),)
BROKEN = {
    "an unknown row": (step([(1, 1, False, [0]), (2, 1, False, [0])], ONE), "not in the batch"),
    "an unknown row that finished": (step(finished=[2]), "not in the batch"),
    "a row twice": (step([(1, 1, False, [0]), (1, 1, False, [])], ONE), "twice"),
    "a new row that is known": (step(new=ONE + ONE), "already"),
    "too many rows": (step(new=(*ONE, new_row(2, [1]), new_row(3, [1]))), "no slot is free"),
    "a new row that waits": (step(new=ONE), "computes nothing"),
    "tokens beyond the last": (step([(1, 4, False, [0])], ONE), "beyond its tokens"),
    "no tokens": (step([(1, 0, False, [0])], ONE), "without tokens"),
    "a table too short": (step([(1, 3, True, [])], ONE), "beyond its block table"),
    "a table too long": (step([(1, 3, True, [0, 1, 2])], ONE), "overflows"),
    "sampling too early": (step([(1, 2, True, [0])], ONE), "before its last token"),
    "a request too long": (step(new=(new_row(1, [5] * 9),)), "longer than the model"),
    "sampling past the end": (step([(1, 8, True, [0, 1])], (new_row(1, [5] * 8),)), "beyond the model"),
    "nothing to compute": (step(new=(new_row(1, [5], 1),)), "nothing to compute"),
    "a draw without a seed": (step(new=(new_row(1, [5], 0, Sampling()),)), "no seed"),
    "blocks that do not add up": (
        RunStep(0, 0, ONE, pack_ids([1]), pack([1]), b"\0", pack([1]), pack([0, 1]), b""),
        "do not add up",
    ),
    "a column too short": (
        RunStep(0, 0, ONE, pack_ids([1]), b"", b"\0", pack([1]), pack([0]), b""),
        "not one a row",
    ),
}


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_protocol_is_an_assertion_error(broken: str) -> None:
    run, match = BROKEN[broken]
    with pytest.raises(AssertionError, match=match):
        Batch(max_num_seqs=2, max_model_len=8, block_size=4).apply(run)


def test_sampled_tokens_must_be_appended_before_the_next_step_and_only_those() -> None:
    batch = Batch(max_num_seqs=2, max_model_len=8, block_size=4)
    batch.apply(step([(1, 3, True, [0])], ONE))
    with pytest.raises(AssertionError, match="2 tokens for 1"):
        batch.append([1, 2])
    with pytest.raises(AssertionError, match="not appended"):
        batch.apply(step())


BLOCK_SIZE, MAX_LEN, MAX_SEQS, NUM_GROUPS = 3, 20, 4, 3


@dataclass
class Naive:
    """A request as plain lists."""

    tokens: list[int]
    computed: int
    sampling: Sampling
    blocks: list[list[int]] = field(default_factory=lambda: [[] for _ in range(NUM_GROUPS)])


def expected(rows: list[tuple[Naive, int, bool]]) -> dict[str, list[Any]]:
    """The inputs of a step, one token at a time."""
    besides = ("requests", "extras", "prompts")
    out: dict[str, list[Any]] = {name: [] for name in StepInputs.__slots__ if name not in besides}
    out["query_start_loc"].append(0)
    out["slot_mapping"] = [[] for _ in range(NUM_GROUPS)]
    out["block_table"] = [[] for _ in range(NUM_GROUPS)]
    width = max((-(-(row.computed + n) // BLOCK_SIZE) for row, n, _ in rows), default=0)
    for index, (row, n, samples) in enumerate(rows):
        for position in range(row.computed, row.computed + n):
            out["input_ids"].append(row.tokens[position])
            out["positions"].append(position)
            for slots, blocks in zip(out["slot_mapping"], row.blocks, strict=True):
                slots.append(blocks[position // BLOCK_SIZE] * BLOCK_SIZE + position % BLOCK_SIZE)
        out["query_start_loc"].append(len(out["input_ids"]))
        out["seq_lens"].append(row.computed + n)
        for table, blocks in zip(out["block_table"], row.blocks, strict=True):
            table.append((blocks + [0] * width)[:width])
        if samples:
            out["sample_rows"].append(index)
            out["logits_indices"].append(len(out["input_ids"]) - 1)
            out["position"].append(row.computed + n)
            out["seed"].append(row.sampling.seed)
            for name in ("temperature", "top_k", "top_p", "min_p"):
                out[name].append(np.float32(getattr(row.sampling, name)))
    return out


SAMPLINGS = st.builds(
    Sampling,
    temperature=st.floats(0, 2),
    top_k=st.integers(0, 99),
    top_p=st.floats(0.01, 1),
    min_p=st.floats(0, 1),
    seed=st.integers(-(2**63), 2**63 - 1),
)


def some_new_rows(data: st.DataObject, rows: dict[int, Naive]) -> list[int]:
    """Let some requests in while there is room; returns which."""
    joined = []
    for request in range(MAX_SEQS + 2):
        if request not in rows and len(rows) < MAX_SEQS and data.draw(st.booleans()):
            tokens = data.draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=MAX_LEN - 1))
            rows[request] = Naive(tokens, data.draw(st.integers(0, len(tokens) - 1)), data.draw(SAMPLINGS))
            joined.append(request)
    return joined


def some_work(
    data: st.DataObject, rows: dict[int, Naive], joined: list[int]
) -> list[tuple[int, int, bool, list[int]]]:
    """Some tokens of some rows, at least one of each that joined, and the blocks they need and more."""
    planned = []
    for request in data.draw(st.permutations(list(rows))):
        row = rows[request]
        debt = len(row.tokens) - row.computed
        if debt and (request in joined or data.draw(st.booleans())):
            n = data.draw(st.integers(1, debt))
            held = len(row.blocks[0])
            need = max(0, -(-(row.computed + n) // BLOCK_SIZE) - held)
            spare = data.draw(st.integers(0, 1)) if held + need < -(-MAX_LEN // BLOCK_SIZE) else 0
            blocks = [data.draw(st.integers(0, 50)) for _ in range(NUM_GROUPS * (need + spare))]
            for group, table in enumerate(row.blocks):
                table += blocks[group * (need + spare) : (group + 1) * (need + spare)]
            planned.append((request, n, n == debt and len(row.tokens) < MAX_LEN, blocks))
    return planned


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_random_diffs_agree_with_lists(data: st.DataObject) -> None:
    batch = Batch(MAX_SEQS, MAX_LEN, BLOCK_SIZE, NUM_GROUPS)
    rows: dict[int, Naive] = {}
    for _ in range(12):
        finished = [request for request in list(rows) if data.draw(st.integers(0, 4)) == 0]
        for request in finished:
            del rows[request]
        joined = some_new_rows(data, rows)
        new = [new_row(r, rows[r].tokens, rows[r].computed, rows[r].sampling) for r in joined]
        planned = some_work(data, rows, joined)
        inputs = batch.apply(step(planned, tuple(new), finished))
        batch.check()
        wanted = expected([(rows[request], n, samples) for request, n, samples, _ in planned])
        for name, column in wanted.items():
            assert getattr(inputs, name).tolist() == column, name
        assert inputs.requests.tolist() == [row[0] for row in planned if row[2]]
        sampled = [data.draw(st.integers(0, 2**31 - 1)) for _, _, samples, _ in planned if samples]
        batch.append(sampled)
        batch.check()
        for request, n, samples, _ in planned:
            rows[request].computed += n
            rows[request].tokens += [sampled.pop(0)] if samples else []
        assert len(batch) == len(rows)


def test_rows_that_go_on_decoding_agree_with_lists() -> None:
    """Steps that differ in nothing but their blocks; then another order, and the first order again."""
    batch = Batch(MAX_SEQS, MAX_LEN, BLOCK_SIZE, NUM_GROUPS)
    drawn = Sampling(temperature=0.5, top_k=3, top_p=0.9, min_p=0.1, seed=-4)
    rows = {
        request: Naive(list(range(request, request + 4)), 0, sampling)
        for request, sampling in ((1, drawn), (2, GREEDY), (3, drawn))
    }
    fresh = itertools.count()

    def run(order: list[int], new: tuple[NewRow, ...] = (), finished: list[int] | None = None) -> None:
        planned = []
        for request in order:
            row = rows[request]
            n = len(row.tokens) - row.computed
            missing = -(-len(row.tokens) // BLOCK_SIZE) - len(row.blocks[0])
            blocks = [next(fresh) for _ in range(NUM_GROUPS * missing)]
            for group, table in enumerate(row.blocks):
                table += blocks[group * missing : (group + 1) * missing]
            planned.append((request, n, True, blocks))
        inputs = batch.apply(step(planned, new, finished))
        wanted = expected([(rows[request], n, samples) for request, n, samples, _ in planned])
        for name, column in wanted.items():
            got = getattr(inputs, name).tolist()
            assert got == [0 if value is None else value for value in column], name
        assert inputs.requests.tolist() == order
        batch.append([100 + request for request in order])
        batch.check()
        for request in order:
            rows[request].computed = len(rows[request].tokens)
            rows[request].tokens.append(100 + request)

    run([1, 2, 3], tuple(new_row(r, row.tokens, 0, row.sampling) for r, row in rows.items()))
    for order in ([1, 2, 3],) * 5 + ([2, 1, 3],) * 3 + ([1, 2, 3],) * 2 + ([1, 3],) * 2:
        run(list(order))
    run([1, 3], finished=[2])
    rows[2] = Naive([5, 6], 0, GREEDY)
    run([1, 3, 2], (new_row(2, [5, 6]),))
    run([1, 3, 2])


@pytest.mark.parametrize("broken", ["blocks", "tokens"])
def test_rows_that_go_on_decoding_are_checked(broken: str) -> None:
    batch = Batch(max_num_seqs=2, max_model_len=16, block_size=2)
    batch.apply(step([(1, 1, True, [0])], (new_row(1, [20]),)))
    batch.append([21])
    batch.apply(step([(1, 1, True, [])]))
    if broken == "blocks":
        batch.append([22])
    else:
        batch._sampling = batch._sampling[:0]
    with pytest.raises(AssertionError, match="beyond its block table" if broken == "blocks" else "beyond"):
        batch.apply(step([(1, 1, True, [])]))


def test_check_notices_a_lost_slot_and_a_stale_block() -> None:
    batch = Batch(max_num_seqs=2, max_model_len=8, block_size=4)
    batch.apply(step([(1, 3, False, [1])], ONE))
    batch.check()
    batch._block_table[0, 0, 1] = 3
    with pytest.raises(AssertionError, match="after a row's last block"):
        batch.check()
    batch.reset()
    batch._free.pop()
    with pytest.raises(AssertionError, match="lost"):
        batch.check()
