from actorllm.checkpoint import open_checkpoint
from actorllm.messages import Sampling


def test_ids_are_bytes() -> None:
    tokenizer = open_checkpoint("hash").tokenizer()
    text = "Grüße,\n 日本\0"
    assert tokenizer.encode(text) == list(text.encode())
    assert tokenizer.decode(list(text.encode())) == text
    assert tokenizer.pieces[:256] == tuple(bytes([byte]) for byte in range(256))


def test_four_special_tokens_follow() -> None:
    tokenizer = open_checkpoint("hash").tokenizer()
    assert tokenizer.encode("<|end|><|im_start|><|im_end|><|spare|>") == [256, 257, 258, 259]
    assert tokenizer.special_ids == {256, 257, 258, 259}
    assert tokenizer.pieces[256] == b"<|end|>"
    assert tokenizer.vocab_size == 260


def test_the_chat_template_is_chatml() -> None:
    messages = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
    tokenizer = open_checkpoint("hash").tokenizer()
    start = "<|im_start|>system\nbe<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n"
    assert tokenizer.render_chat(messages) == start + "<|im_start|>assistant\n"
    assert tokenizer.render_chat(messages, add_generation_prompt=False) == start


def test_the_checkpoint() -> None:
    checkpoint = open_checkpoint("hash")
    assert (checkpoint.name, checkpoint.architecture.family) == ("hash", "hash")
    assert checkpoint.architecture.vocab_size == 260
    assert checkpoint.architecture.max_position_embeddings == 4096
    assert checkpoint.eos_token_ids == {256}
    assert checkpoint.sampling_defaults == Sampling()
    assert checkpoint.weights() == {}
    assert checkpoint.tokenizer() is checkpoint.tokenizer()
