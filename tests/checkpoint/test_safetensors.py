import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorllm.checkpoint.safetensors import SafetensorsFile, Weights, read_json
from actorllm.errors import ModelCorrupt, UnsupportedModel

from .files import write_safetensors

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def write_header(path: Path, header: Any, data: bytes = b"") -> Path:
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def test_tensors_of_the_three_types(tmp_path: Path) -> None:
    bits = (VALUES.view(np.uint32) >> 16).astype(np.uint16)  # small integers are exact in bfloat16
    written: dict[str, tuple[str, Any]] = {
        "a": ("F32", VALUES),
        "b": ("F16", VALUES.astype(np.float16)),
        "c": ("BF16", bits),
    }
    file = SafetensorsFile(write_safetensors(tmp_path / "x.safetensors", written))
    assert list(file.tensors) == ["a", "b", "c"]
    for name, (dtype, _) in written.items():
        tensor = file.read(name)
        assert (tensor.name, tensor.dtype, tensor.shape) == (name, dtype, (3, 4))
        np.testing.assert_array_equal(tensor.to_float32(), VALUES)


def test_the_data_is_mapped_and_read_only(tmp_path: Path) -> None:
    file = SafetensorsFile(write_safetensors(tmp_path / "x.safetensors", {"a": ("F32", VALUES)}))
    assert not file.read("a").data.flags.writeable
    assert not file.read("a").data.flags.owndata


def test_another_type_is_named_when_it_is_read(tmp_path: Path) -> None:
    data = np.zeros(4, np.uint8)
    file = SafetensorsFile(write_safetensors(tmp_path / "x.safetensors", {"a": ("F8_E4M3", data)}))
    with pytest.raises(UnsupportedModel, match=r"a is of type F8_E4M3; supported are F32, F16, BF16"):
        file.read("a")


def test_a_truncated_file_names_the_tensor(tmp_path: Path) -> None:
    path = write_safetensors(tmp_path / "x.safetensors", {"a": ("F32", VALUES), "b": ("F32", VALUES)})
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ModelCorrupt, match=r"x\.safetensors: tensor b ends at byte \d+, but the file at \d+"):
        SafetensorsFile(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"abc", "it is truncated, or no safetensors file"),
        (b"PK\x03\x04" + b"\xff" * 60, "it is truncated, or no safetensors file"),
        (struct.pack("<Q", 4) + b"!{}!", "its header is no JSON"),
        (struct.pack("<Q", 2) + b"[]", "its header is no JSON object"),
    ],
)
def test_a_foreign_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelCorrupt, match=rf"x\.safetensors.*{message}"):
        SafetensorsFile(path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2, 2]},
        {"dtype": "F32", "shape": "wide", "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [-2, -2], "data_offsets": [0, 16]},
        {"dtype": "F32", "shape": [2, 2], "data_offsets": [-16, 0]},
        7,
    ],
)
def test_an_entry_that_cannot_be_is_corrupt(tmp_path: Path, entry: Any) -> None:
    path = write_header(tmp_path / "x.safetensors", {"the.weight": entry}, bytes(16))
    with pytest.raises(ModelCorrupt, match=r"x\.safetensors: .*the\.weight"):
        SafetensorsFile(path)


def shards(path: Path) -> Path:
    write_safetensors(path / "one.safetensors", {"a": ("F32", VALUES)})
    write_safetensors(path / "two.safetensors", {"b": ("F32", VALUES + 1), "x.inv_freq": ("F32", VALUES)})
    index = {"weight_map": {"a": "one.safetensors", "b": "two.safetensors", "x.inv_freq": "two.safetensors"}}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


def test_an_index_leads_to_the_shards(tmp_path: Path) -> None:
    weights = Weights(shards(tmp_path))
    assert "b" in weights
    assert "lm_head.weight" not in weights
    assert weights.dtype() == "F32"
    read = weights.read()
    assert list(read) == ["a", "b"]  # inverse frequencies are no weights
    np.testing.assert_array_equal(read["b"].to_float32(), VALUES + 1)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / "two.safetensors").unlink()
    with pytest.raises(
        ModelCorrupt, match=r"index\.json: the file two\.safetensors that it names is missing"
    ):
        Weights(tmp_path)


def test_a_truncated_shard_is_named(tmp_path: Path) -> None:
    shards(tmp_path)
    (tmp_path / "two.safetensors").write_bytes((tmp_path / "two.safetensors").read_bytes()[:-4])
    with pytest.raises(ModelCorrupt, match=r"two\.safetensors: tensor x\.inv_freq ends at byte"):
        Weights(tmp_path)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({}, "has no weight_map"),
        ({"weight_map": {"a": "../outside.safetensors"}}, "no name of a file beside it"),
        ({"weight_map": {"a": 5}}, "no name of a file beside it"),
        ({"weight_map": {"c": "one.safetensors"}}, r"one\.safetensors does not hold c"),
    ],
)
def test_an_index_that_cannot_be_is_corrupt(tmp_path: Path, index: Any, message: str) -> None:
    shards(tmp_path)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelCorrupt, match=message):
        Weights(tmp_path)


def test_a_directory_without_weights_says_so(tmp_path: Path) -> None:
    with pytest.raises(ModelCorrupt, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"):
        Weights(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(UnsupportedModel, match="supported are safetensors and GGUF"):
        Weights(tmp_path)


def test_json_that_is_missing_broken_or_no_object(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    with pytest.raises(ModelCorrupt, match=r"config\.json: cannot be read: No such file"):
        read_json(path)
    path.write_text('{"a": ')
    with pytest.raises(ModelCorrupt, match=r"config\.json: is not valid JSON"):
        read_json(path)
    path.write_bytes(b'{"a": "\xff"}')
    with pytest.raises(ModelCorrupt, match=r"config\.json: is not valid JSON"):
        read_json(path)
    path.write_text("[1]")
    with pytest.raises(ModelCorrupt, match=r"config\.json: must hold a JSON object, not list"):
        read_json(path)
