"""What the kinds of checkpoint have in common."""

from collections.abc import Mapping
from typing import Protocol

from ..errors import ModelCorrupt
from ..messages import Sampling
from .architecture import Architecture, tensor_shapes
from .fields import Fields
from .tensor import RawTensor
from .tokenizer import Tokenizer


class Source(Protocol):
    """A checkpoint of one format. Opening has read its description; the methods read the rest."""

    architecture: Architecture
    sampling_defaults: Sampling

    @property
    def eos_token_ids(self) -> frozenset[int]:
        """Ids that the files, apart from the tokenizer's, name as an end."""

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, loaded anew."""

    def weights(self) -> dict[str, RawTensor]:
        """The weights, by their Hugging Face names."""


def sampling_from(fields: Fields, names: Mapping[str, str]) -> Sampling:
    """Sampling with what `fields` recommend, as vLLM takes it over: a value that is not there keeps
    Sampling's own, and `do_sample` does not matter. `names` maps Sampling's fields to keys.
    """
    plain = Sampling()
    top_k = fields.number(names["top_k"], plain.top_k)
    return Sampling(
        temperature=fields.number(names["temperature"], plain.temperature),
        top_k=max(0, int(top_k)),
        top_p=fields.number(names["top_p"], plain.top_p),
        min_p=fields.number(names["min_p"], plain.min_p),
        repetition_penalty=fields.number(names["repetition_penalty"], plain.repetition_penalty),
    )


def check_weights(weights: Mapping[str, RawTensor], architecture: Architecture, source: object) -> None:
    """Raise ModelCorrupt for the first weight of the architecture that is missing or has another shape."""
    for name, shape in tensor_shapes(architecture).items():
        tensor = weights.get(name)
        if tensor is None:
            raise ModelCorrupt(f"{source}: the weight {name} is missing")
        if tensor.shape != shape:
            raise ModelCorrupt(f"{source}: the weight {name} has the shape {tensor.shape}, not {shape}")
