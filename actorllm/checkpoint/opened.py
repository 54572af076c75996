"""The one class that the rest of actorllm sees of a model on disk."""

from functools import cached_property
from pathlib import Path
from threading import RLock

from ..messages import Sampling
from .architecture import Architecture
from .directory import DirectorySource
from .fetch import Progress
from .gguf_source import GGUFSource
from .hash import HashSource, parse_windows
from .resolve import HASH, resolve
from .source import Source
from .tensor import RawTensor
from .tokenizer import Tokenizer


class Checkpoint:
    """A model on disk: opened and checked, but with tokenizer and weights still where they are.

    name               the one that is known, the hub's id, or the name of the file or directory
    path               the GGUF file or the directory
    architecture       the network that it is
    sampling_defaults  what the model's makers recommend
    """

    def __init__(self, name: str, path: Path, source: Source) -> None:
        self.name = name
        self.path = path
        self.architecture: Architecture = source.architecture
        self.sampling_defaults: Sampling = source.sampling_defaults
        self._source = source
        self._tokenizer: Tokenizer | None = None
        self._lock = RLock()

    def __repr__(self) -> str:
        return f"<Checkpoint {self.name}: {self.architecture.family}, {self.architecture.dtype}>"

    @cached_property
    def eos_token_ids(self) -> frozenset[int]:
        """All ids that end an answer, from every file that names one. Loads the tokenizer, which may too."""
        own = self.tokenizer().eos_token_id
        return self._source.eos_token_ids | (frozenset() if own is None else {own})

    def tokenizer(self) -> Tokenizer:
        """The tokenizer, loaded at the first call. Blocks. Raises UnsupportedModel and ModelCorrupt."""
        with self._lock:
            if self._tokenizer is None:
                self._tokenizer = self._source.tokenizer()
            return self._tokenizer

    def weights(self) -> dict[str, RawTensor]:
        """Every weight of `tensor_shapes(architecture)` by its Hugging Face name, memory-mapped.

        Raises ModelCorrupt if one is missing or has the wrong shape, UnsupportedModel for one that is of a
        type or has a name that is not known.
        """
        return self._source.weights()


def open_checkpoint(model: str, *, progress: Progress | None = None) -> Checkpoint:
    """Open a model: one that is known by name, `hash`, a GGUF file, a Hugging Face directory, or a hub id.

    Blocks, for minutes if it has to be downloaded: call it on a thread. `progress` is called while a
    known model is fetched. Raises ModelNotFound, ModelCorrupt, UnsupportedModel and DownloadFailed.
    """
    name, path = resolve(model, progress)
    source: Source
    if name == HASH and path == Path(HASH):
        source = HashSource(parse_windows(model))
    elif path.is_dir():
        source = DirectorySource(path)
    else:
        source = GGUFSource(path)
    return Checkpoint(name, path, source)
