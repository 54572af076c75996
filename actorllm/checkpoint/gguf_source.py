"""A GGUF file as a checkpoint."""

import re
from collections.abc import Mapping
from pathlib import Path

from ..errors import UnsupportedModel
from ..messages import Sampling
from .chat import ChatTemplate
from .fields import Fields
from .gguf import GGUFFile
from .metadata import from_gguf
from .source import check_weights, sampling_from
from .tensor import RawTensor, view
from .tokenizer import Tokenizer

_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GEMMA3_LAYER = _LAYER | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_SPECIALS = {"bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding"}
_END_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
_END_TEXTS = {"<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>"}
_CONTROL = 3
_TEMPLATE = "tokenizer.chat_template"
_SAMPLING = {
    "temperature": "general.sampling.temp",
    "top_k": "general.sampling.top_k",
    "top_p": "general.sampling.top_p",
    "min_p": "general.sampling.min_p",
    "repetition_penalty": "general.sampling.penalty_repeat",
}


class GGUFSource:
    """One GGUF file. Raises ModelCorrupt and UnsupportedModel."""

    def __init__(self, path: Path) -> None:
        self.file = GGUFFile(path)
        self.architecture = from_gguf(self.file)
        self._fields = Fields(path, self.file.get)
        self.sampling_defaults: Sampling = sampling_from(self._fields, _SAMPLING)

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """The file's end of sequence, of turn and of message.

        Files older than the key for the end of turn name it by its text only.
        """
        ends = frozenset[int]().union(*(self._fields.ids(key) for key in _END_KEYS))
        if self._fields.ids("tokenizer.ggml.eot_token_id"):
            return ends
        tokens = self._fields.texts("tokenizer.ggml.tokens")
        types = self._fields.numbers("tokenizer.ggml.token_type") or []
        controls = [number for number, kind in enumerate(types[: len(tokens)]) if kind == _CONTROL]
        return ends | {number for number in controls if tokens[number] in _END_TEXTS}

    def tokenizer(self) -> Tokenizer:
        """The vocabulary of the file, converted."""
        from .gguf_tokenizer import convert

        specials = self._special_tokens()
        return Tokenizer(
            convert(self.file),
            ChatTemplate(self._templates(), specials),
            specials.get("eos_token"),
            self.architecture.vocab_size,
        )

    def weights(self) -> dict[str, RawTensor]:
        """All weights; q and k of llama models get the row order of Hugging Face back."""
        a = self.architecture
        heads = {"attn_q": a.num_heads, "attn_k": a.num_kv_heads} if a.family == "llama" else {}
        names = _GEMMA3_LAYER if a.family == "gemma3" else _LAYER
        weights = {}
        for name, extent in self.file.tensors.items():
            if name == "rope_freqs.weight":  # part of the architecture
                continue
            canonical, part = _canonical(name, names, self.file.path)
            stored = view(self.file.bytes_of(extent), extent.dtype, extent.shape)
            weights[canonical] = RawTensor(canonical, extent.shape, extent.dtype, stored, heads.get(part, 0))
        check_weights(weights, a, self.file.path)
        return weights

    def _special_tokens(self) -> dict[str, str]:
        tokens = self._fields.texts("tokenizer.ggml.tokens")
        specials = {}
        for name, key in _SPECIALS.items():
            number = int(self._fields.number(f"tokenizer.ggml.{key}_token_id", -1))
            if 0 <= number < len(tokens):
                specials[f"{name}_token"] = tokens[number]
        return specials

    def _templates(self) -> dict[str, str]:
        templates = {}
        for key in self.file.keys():  # noqa: SIM118  # not a mapping
            if key == _TEMPLATE or key.startswith(_TEMPLATE + "."):
                name = key.removeprefix(_TEMPLATE).removeprefix(".") or "default"
                templates[name] = self._fields.text(key) or ""
        return templates


def _canonical(name: str, names: Mapping[str, str], path: Path) -> tuple[str, str]:
    """The Hugging Face name of a tensor, and the part of it that ggml names."""
    match = re.fullmatch(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)", name)
    if match:
        layer, part, kind = match.groups()
        if layer is None and part in _TOP:
            return f"{_TOP[part]}.{kind}", part
        if layer is not None and part in names:
            return f"model.layers.{layer}.{names[part]}.{kind}", part
    raise UnsupportedModel(f"{path}: the tensor {name} has no place in the architectures that are supported")
