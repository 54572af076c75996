"""The built-in checkpoint `hash`: no weights, and a byte-level vocabulary.

Its next token is a hash of what the cache holds, so that every mistake in the cache shows.
"""

from ..errors import ModelNotFound
from ..messages import Sampling
from .architecture import Architecture
from .chat import ChatTemplate
from .tensor import RawTensor
from .tokenizer import Tokenizer, byte_alphabet

END, IM_START, IM_END, SPARE = "<|end|>", "<|im_start|>", "<|im_end|>", "<|spare|>"
END_ID = 256

_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def parse_windows(model: str) -> tuple[int, ...]:
    """The windows of the groups of layers that follow on `hash:`; one group that sees all without.

    Raises ModelNotFound for what is no list of windows: 0, or at least 2 tokens each.
    """
    _, colon, listed = model.partition(":")
    if not colon:
        return (0,)
    found = tuple(int(each) if each.isascii() and each.isdecimal() else -1 for each in listed.split(","))
    if any(window < 0 or window == 1 for window in found):
        text = f"{model!r}: after the colon come windows such as 0,8, each 0 (sees all) or at least 2 tokens"
        raise ModelNotFound(text)
    return found


class HashSource:
    """Token ids 0 to 255 are the bytes; then come the end, the two marks of ChatML and a spare."""

    def __init__(self, windows: tuple[int, ...] = (0,)) -> None:
        self.eos_token_ids = frozenset({END_ID})
        self.sampling_defaults = Sampling()
        self.architecture = Architecture(
            family="hash",
            vocab_size=260,
            hidden_size=2,
            intermediate_size=1,
            num_layers=1,
            num_heads=1,
            num_kv_heads=1,
            head_dim=2,
            rms_norm_eps=1e-5,
            rope_theta=10000.0,
            rope_scaling=None,
            max_position_embeddings=4096,
            tie_word_embeddings=True,
            window_groups=windows,
        )

    def tokenizer(self) -> Tokenizer:
        """A tokenizer whose ids are bytes."""
        from tokenizers import AddedToken, decoders, models, pre_tokenizers
        from tokenizers import Tokenizer as Backend

        alphabet = byte_alphabet()
        backend = Backend(models.BPE(vocab={char: byte for byte, char in alphabet.items()}, merges=[]))
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.decoder = decoders.ByteLevel()
        backend.add_special_tokens(
            [AddedToken(text, special=True, normalized=False) for text in (END, IM_START, IM_END, SPARE)]
        )
        return Tokenizer(backend, ChatTemplate({"default": _TEMPLATE}, {"eos_token": END}), END)

    def weights(self) -> dict[str, RawTensor]:
        """None."""
        return {}
