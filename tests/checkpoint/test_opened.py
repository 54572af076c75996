import json
from pathlib import Path

import huggingface_hub.constants
import pytest

from actorllm.checkpoint import Checkpoint, open_checkpoint
from actorllm.errors import DownloadFailed, ModelCorrupt, ModelNotFound

from .files import byte_level, write_gguf


def test_a_file_is_a_model(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "little.Q4.gguf", settings={"tokenizer.ggml.eos_token_id": 257})
    checkpoint = open_checkpoint(str(path))
    assert (checkpoint.name, checkpoint.path) == ("little.Q4", path)
    assert checkpoint.eos_token_ids == {257}
    assert checkpoint.tokenizer().encode("he") == [256]
    assert checkpoint.tokenizer() is checkpoint.tokenizer()
    assert "model.embed_tokens.weight" in checkpoint.weights()


def test_a_directory_with_one_gguf_file_stands_for_it(tmp_path: Path) -> None:
    directory = tmp_path / "little"
    directory.mkdir()
    path = write_gguf(directory / "x.gguf")
    assert open_checkpoint(str(directory)).path == path
    assert open_checkpoint(str(directory)).name == "little"
    write_gguf(directory / "y.gguf")
    with pytest.raises(ModelNotFound, match=r"holds 2 GGUF files: name one, such as .*x\.gguf"):
        open_checkpoint(str(directory))


def test_the_tokenizer_covers_the_rows_of_the_embedding(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "x.gguf", vocabulary=byte_level("he", controls=("<a>", "<b>")))
    checkpoint = open_checkpoint(str(path))
    assert checkpoint.architecture.vocab_size == len(checkpoint.tokenizer().pieces) == 259


@pytest.mark.parametrize(
    "model", ["nothing", "./no/where", "/no/where.gguf", "some/file.gguf", "a/b/c", "org/"]
)
def test_what_is_nowhere_lists_what_is_accepted(model: str) -> None:
    with pytest.raises(ModelNotFound, match=r"smollm2-135m .*hash .*GGUF file.*directory.*hub id"):
        open_checkpoint(model)


def test_a_directory_without_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(ModelCorrupt, match=r"config\.json is missing"):
        open_checkpoint(str(tmp_path))


@pytest.mark.parametrize("name", ["model.safetensors", "notes.txt"])
def test_a_file_of_another_kind(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\x10" + bytes(100))
    with pytest.raises(ModelCorrupt, match=rf"{name}: not a GGUF file"):
        open_checkpoint(str(tmp_path / name))


def test_a_broken_configuration(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"})[:-1])
    with pytest.raises(ModelCorrupt, match=r"config\.json: is not valid JSON"):
        open_checkpoint(str(tmp_path))


def test_the_hub_out_of_reach(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(
        DownloadFailed, match=r"'some-org/some-model' is no file or directory, and the Hugging"
    ):
        open_checkpoint("some-org/some-model")


def test_a_checkpoint_shows_what_it_is(tmp_path: Path) -> None:
    checkpoint: Checkpoint = open_checkpoint(str(write_gguf(tmp_path / "x.gguf")))
    assert repr(checkpoint) == "<Checkpoint x: llama, float32>"
