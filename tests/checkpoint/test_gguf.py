import struct
from pathlib import Path

import gguf
import numpy as np
import pytest

from actorllm.checkpoint.gguf import GGUFFile
from actorllm.errors import ModelCorrupt, UnsupportedModel

from .files import write_gguf


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_gguf(tmp_path / "tiny.gguf")


def test_every_kind_of_value_reads_as_written(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "kv.gguf", "llama")
    writer.add_uint8("u8", 200)
    writer.add_int8("i8", -3)
    writer.add_uint16("u16", 60000)
    writer.add_int16("i16", -300)
    writer.add_uint32("u32", 4_000_000_000)
    writer.add_int32("i32", -70000)
    writer.add_uint64("u64", 1 << 60)
    writer.add_int64("i64", -(1 << 60))
    writer.add_float32("f32", 1e-5)
    writer.add_float64("f64", 0.1)
    writer.add_bool("yes", True)
    writer.add_string("text", "grüße ▁")
    writer.add_array("ints", [3, 1, 2])
    writer.add_array("floats", [0.5, -1.25])
    writer.add_array("texts", ["a", "", "ß"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GGUFFile(tmp_path / "kv.gguf")
    scalars = ("u8", "i8", "u16", "i16", "u32", "i32", "u64", "i64", "f32", "f64", "yes", "text")
    expected = [200, -3, 60000, -300, 4_000_000_000, -70000, 1 << 60, -(1 << 60), 1e-5, 0.1, True, "grüße ▁"]
    assert [file.get(key) for key in scalars] == expected
    assert file.get("ints").tolist() == [3, 1, 2]
    assert file.get("floats").tolist() == [0.5, -1.25]
    assert file.get("texts") == ["a", "", "ß"]
    assert file.get("nothing") is None
    assert file.get("nothing", 7) == 7
    assert file.keys()[:2] == ("general.architecture", "u8")


def test_tensors_lie_where_gguf_itself_finds_them(path: Path) -> None:
    file = GGUFFile(path)
    reference = {tensor.name: tensor for tensor in gguf.GGUFReader(path).tensors}
    assert list(file.tensors) == list(reference)
    for name, extent in file.tensors.items():
        assert extent.shape == tuple(reversed(reference[name].shape.tolist()))
        assert extent.start == reference[name].data_offset
        np.testing.assert_array_equal(
            file.bytes_of(extent).view(np.float32), reference[name].data.reshape(-1)
        )


@pytest.mark.parametrize("share", [0.0001, 0.01, 0.05, 0.2])
def test_a_file_that_ends_within_the_header_is_truncated(path: Path, share: float) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[: max(5, int(len(whole) * share))])
    with pytest.raises(ModelCorrupt, match=r"tiny\.gguf.*truncated"):
        GGUFFile(path)


def test_a_file_that_ends_within_the_data_names_the_tensor(path: Path) -> None:
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    with pytest.raises(ModelCorrupt, match=r"tensor output_norm\.weight ends at byte \d+, but the file at"):
        GGUFFile(path)


@pytest.mark.parametrize("content", [b"", b"GG", b"PK\x03\x04 a wheel", b"{}"])
def test_a_foreign_file_is_named(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    with pytest.raises(ModelCorrupt, match=r"tiny\.gguf: not a GGUF file"):
        GGUFFile(path)


def test_another_version_is_refused(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[4:8] = struct.pack("<I", 1)
    path.write_bytes(raw)
    with pytest.raises(UnsupportedModel, match="GGUF version 1; supported are 2 and 3"):
        GGUFFile(path)


def test_text_that_is_not_utf8_is_corrupt(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"gpt-2", b"gpt\xff2"))
    with pytest.raises(ModelCorrupt, match="not UTF-8"):
        GGUFFile(path)


def test_a_token_that_is_not_utf8_is_corrupt_once_it_is_read(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"<|end|>", b"<|\xff\xff\xff|>"))
    with pytest.raises(ModelCorrupt, match=r"tokenizer\.ggml\.tokens has text that is not UTF-8"):
        GGUFFile(path).get("tokenizer.ggml.tokens")


def test_an_unknown_quantisation_is_named_with_what_is_supported(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "llama")
    writer.add_tensor("blk.0.odd.weight", np.zeros((4, 2), np.float64))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match=r"blk\.0\.odd\.weight has the quantisation F64; .*Q4_1.*Q6_K"):
        GGUFFile(tmp_path / "odd.gguf")
