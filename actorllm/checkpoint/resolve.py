"""From what a user calls a model to the file or directory where it lies."""

import re
from pathlib import Path

from ..errors import DownloadFailed, ModelCorrupt, ModelNotFound
from .fetch import MODELS, Progress, fetch

HASH = "hash"
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_HUB_FILES = [
    "*.json",
    "*.safetensors",
    "*.jinja",
    "tokenizer.model",
    "*.tiktoken",
    "merges.txt",
    "vocab.txt",
]
_ACCEPTED = (
    f"{' and '.join(MODELS)} (fetched once), {HASH} (no weights; {HASH}:0,8 with windows), a GGUF file, "
    "a Hugging Face directory, or a hub id such as Qwen/Qwen3-0.6B"
)


def resolve(model: str, progress: Progress | None = None) -> tuple[str, Path]:
    """The name of a model, and its GGUF file or directory (for `hash`: a path that is nowhere). Blocks.

    After `hash:` come the windows of its groups of layers.

    Known names go before what exists on disk; a directory with a single GGUF file and no config.json
    stands for that file. Raises ModelNotFound, ModelCorrupt and DownloadFailed.
    """
    if model.partition(":")[0] == HASH:
        return HASH, Path(HASH)
    if model in MODELS:
        return model, fetch(MODELS[model], progress)
    path = Path(model).expanduser()
    if path.is_file():
        return path.name.removesuffix(".gguf"), path
    if path.is_dir():
        return _directory(path)
    if _HUB_ID.fullmatch(model) and not model.endswith(".gguf"):
        return model, _snapshot(model)
    raise ModelNotFound(f"no model {model!r}; accepted are {_ACCEPTED}")


def is_here(model: str) -> bool:
    """Whether it is a known name, a file or a directory, so that `resolve` asks no hub for it."""
    if model.partition(":")[0] == HASH or model in MODELS:
        return True
    try:
        path = Path(model).expanduser()
        return path.is_file() or path.is_dir()
    except (RuntimeError, OSError):  # the home of nobody, or a name that no file can have
        return False


def _directory(path: Path) -> tuple[str, Path]:
    name = path.resolve().name
    if (path / "config.json").is_file():
        return name, path
    files = sorted(path.glob("*.gguf"))
    if len(files) == 1:
        return name, files[0]
    if files:
        raise ModelNotFound(f"{path} holds {len(files)} GGUF files: name one, such as {files[0]}")
    raise ModelCorrupt(f"{path}: config.json is missing: it is no Hugging Face directory")


def _snapshot(model: str) -> Path:
    """The hub's repository in the hub's own cache."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        return Path(str(snapshot_download(model, allow_patterns=_HUB_FILES)))
    except GatedRepoError as error:
        raise DownloadFailed(
            f"{model} is gated on the Hugging Face hub: log in and accept its terms"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelNotFound(
            f"no file or directory {model!r}, and none on the Hugging Face hub; accepted are {_ACCEPTED}"
        ) from error
    except Exception as error:  # of several HTTP libraries and of the file system
        raise DownloadFailed(
            f"{model!r} is no file or directory, and the Hugging Face hub could not be reached: {error}"
        ) from error
