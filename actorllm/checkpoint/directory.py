"""A Hugging Face directory as a checkpoint."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import ModelCorrupt, UnsupportedModel
from ..messages import Sampling
from .chat import ChatTemplate
from .configuration import from_config
from .fields import Fields
from .safetensors import Weights, read_json
from .source import check_weights, sampling_from
from .tensor import RawTensor
from .tokenizer import Tokenizer

if TYPE_CHECKING:
    import tokenizers

_SAMPLING = {name: name for name in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")}
_SPECIALS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class DirectorySource:
    """config.json, safetensors and tokenizer.json. Raises ModelCorrupt and UnsupportedModel."""

    def __init__(self, path: Path) -> None:
        self.path = path
        config_path, generation_path = path / "config.json", path / "generation_config.json"
        config, generation = read_json(config_path), _read_if_there(generation_path)
        self._settings = _read_if_there(path / "tokenizer_config.json")
        self._weights = Weights(path)
        self.architecture = from_config(
            config, config_path, self._weights.dtype(), "lm_head.weight" in self._weights
        )
        recommended = Fields(generation_path, generation.get)
        self.sampling_defaults: Sampling = sampling_from(recommended, _SAMPLING)
        ends = Fields(config_path, config.get).ids("eos_token_id")
        self.eos_token_ids = ends | recommended.ids("eos_token_id")

    def tokenizer(self) -> Tokenizer:
        """tokenizer.json with its settings; without it, what transformers makes of the directory."""
        specials = self._special_tokens()
        return Tokenizer(
            self._backend(),
            ChatTemplate(self._templates(), specials),
            specials.get("eos_token"),
            self.architecture.vocab_size,
        )

    def weights(self) -> dict[str, RawTensor]:
        """All weights, checked against the architecture."""
        weights = self._weights.read()
        check_weights(weights, self.architecture, self._weights.source)
        return weights

    def _backend(self) -> "tokenizers.Tokenizer":
        import tokenizers

        path = self.path / "tokenizer.json"
        if not path.is_file():
            return self._converted()
        try:
            return tokenizers.Tokenizer.from_file(str(path))
        except Exception as error:  # the library raises a bare Exception
            raise ModelCorrupt(f"{path}: {error}") from None

    def _converted(self) -> "tokenizers.Tokenizer":
        from transformers import AutoTokenizer

        try:
            loaded: Any = AutoTokenizer.from_pretrained(self.path, local_files_only=True)
        except Exception as error:  # whatever the many tokenizers of transformers raise
            raise ModelCorrupt(
                f"{self.path}: no tokenizer.json, and transformers finds no other: {error}"
            ) from error
        backend: tokenizers.Tokenizer | None = getattr(loaded, "backend_tokenizer", None)
        if backend is None:
            raise UnsupportedModel(
                f"{self.path}: the tokenizer {type(loaded).__name__} without a tokenizer.json"
            )
        return backend

    def _special_tokens(self) -> dict[str, str]:
        """What tokenizer_config.json names, or special_tokens_map.json where it does not."""
        found = _read_if_there(self.path / "special_tokens_map.json") | {
            key: value for key, value in self._settings.items() if value is not None
        }
        specials = {}
        for name in _SPECIALS:
            value = found.get(name)
            content = value.get("content") if isinstance(value, dict) else value
            if isinstance(content, str):
                specials[name] = content
        return specials

    def _templates(self) -> dict[str, str]:
        """The templates by name: files go before what tokenizer_config.json holds."""
        stored = self._settings.get("chat_template")
        templates: dict[str, str] = {}
        if isinstance(stored, str):
            templates["default"] = stored
        elif isinstance(stored, list):
            named = [entry for entry in stored if isinstance(entry, dict)]
            templates |= {str(entry.get("name")): str(entry.get("template", "")) for entry in named}
        for file in sorted((self.path / "additional_chat_templates").glob("*.jinja")):
            templates[file.stem] = _read_text(file)
        main = self.path / "chat_template.jinja"
        if main.is_file():
            templates["default"] = _read_text(main)
        return templates


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelCorrupt(f"{path}: cannot be read: {error}") from None


def _read_if_there(path: Path) -> dict[str, Any]:
    return read_json(path) if path.is_file() else {}
