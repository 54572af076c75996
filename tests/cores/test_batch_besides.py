"""What a batch keeps besides the columns of its rows: parts of prompts to be told of, and what rows ask."""

from actorllm.cores.batch import Batch
from actorllm.cores.inputs import PromptPart
from actorllm.messages import NewRow, Sampling, pack

from .test_batch import step

TOLD = Sampling(temperature=0.0, prompt_logprobs=2)
PENALISED = Sampling(temperature=0.0, frequency_penalty=0.5)
PROMPT = [10, 11, 12, 13, 14, 15]


def new(request: int, sampling: Sampling, tokens: list[int], computed: int = 0, told: int = 0) -> NewRow:
    return NewRow(request, pack(tokens), computed, sampling, len(PROMPT), told)


def parts(found: tuple[PromptPart, ...]) -> list[tuple[int, int, int, list[int], int]]:
    return [(part.request, part.first, part.begin, part.targets.tolist(), part.num_top) for part in found]


def test_each_token_of_a_prompt_speaks_of_the_next_one_chunk_after_chunk() -> None:
    batch = Batch(max_num_seqs=2, max_model_len=16, block_size=8)
    other = NewRow(9, pack([20, 21]), 0, Sampling(temperature=0.0), 2)
    chunk = step([(9, 2, False, [1]), (7, 2, False, [0])], (other, new(7, TOLD, PROMPT)))
    assert parts(batch.apply(chunk).prompts) == [(7, 1, 2, [11, 12], 2)]
    assert parts(batch.apply(step([(7, 3, False, [])])).prompts) == [(7, 3, 0, [13, 14, 15], 2)]
    inputs = batch.apply(step([(7, 1, True, [])]))
    assert parts(inputs.prompts) == [], "the last token speaks of the answer"
    batch.append([16])
    assert parts(batch.apply(step([(7, 1, True, [])])).prompts) == []


def test_a_whole_prompt_in_one_step() -> None:
    batch = Batch(max_num_seqs=2, max_model_len=16, block_size=8)
    inputs = batch.apply(step([(7, 6, True, [0])], (new(7, TOLD, PROMPT),)))
    assert parts(inputs.prompts) == [(7, 1, 0, [11, 12, 13, 14, 15], 2)]


def test_what_was_told_before_a_preemption_is_not_told_again() -> None:
    batch = Batch(max_num_seqs=2, max_model_len=16, block_size=8)
    inputs = batch.apply(step([(7, 2, False, [0])], (new(7, TOLD, PROMPT, told=4),)))
    assert parts(inputs.prompts) == []
    assert parts(batch.apply(step([(7, 2, False, [])])).prompts) == [(7, 4, 1, [14], 2)]
    assert parts(batch.apply(step([(7, 2, True, [])])).prompts) == [(7, 5, 0, [15], 2)]


def test_a_resumed_answer_has_nothing_to_tell_of_its_prompt() -> None:
    batch = Batch(max_num_seqs=2, max_model_len=16, block_size=8)
    row = new(7, TOLD, [*PROMPT, 16, 17], told=len(PROMPT))
    assert parts(batch.apply(step([(7, 8, True, [0])], (row,))).prompts) == []


def test_a_prompt_of_one_token_has_nothing_to_tell() -> None:
    batch = Batch(max_num_seqs=2, max_model_len=16, block_size=8)
    row = NewRow(7, pack([10]), 0, TOLD, 1)
    assert parts(batch.apply(step([(7, 1, True, [0])], (row,))).prompts) == []


def test_what_a_row_asks_goes_on_with_its_tokens_and_leaves_with_it() -> None:
    batch = Batch(max_num_seqs=2, max_model_len=16, block_size=8)
    plain = NewRow(1, pack([5]), 0, Sampling(temperature=0.0), 1)
    rows = [(1, 1, True, [0]), (7, 6, True, [1])]
    inputs = batch.apply(step(rows, (plain, new(7, PENALISED, PROMPT))))
    assert list(inputs.extras) == [1]
    extras = inputs.extras[1]
    batch.append([3, 40])
    again = batch.apply(step([(1, 1, True, []), (7, 1, True, [])]))
    assert again.extras == {1: extras}
    batch.append([3, 41])
    turned = batch.apply(step([(7, 1, True, []), (1, 1, True, [])]))
    assert turned.extras == {0: extras}
    batch.append([42, 3])
    left = batch.apply(step([(1, 1, True, [])], finished=[7]))
    assert left.extras == {}


def test_a_row_that_does_not_sample_asks_nothing_yet() -> None:
    batch = Batch(max_num_seqs=2, max_model_len=16, block_size=8)
    inputs = batch.apply(step([(7, 3, False, [0])], (new(7, PENALISED, PROMPT),)))
    assert inputs.extras == {}
    assert inputs.requests.tolist() == []
    assert list(batch.apply(step([(7, 3, True, [])])).extras) == [0]
