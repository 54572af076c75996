"""A picture is well-formed, its bars are in proportion, and a path that cannot be is told before."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from actorllm import MachineError, UsageError
from actorllm.bench.picture import BAR, bars, check_path, save

SVG = "{http://www.w3.org/2000/svg}"


def test_bars_are_in_proportion() -> None:
    root = ElementTree.fromstring(bars("a < b", [("<one>", 50.0), ("two", 200.0), ("none", 0.0)]))
    _, *rows = root.iter(f"{SVG}rect")
    assert [float(row.attrib["width"]) for row in rows] == [BAR / 4, BAR, 0.0]
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert texts == ["a < b", "<one>", "50.0", "two", "200.0", "none", "0.0"]


@pytest.mark.parametrize("values", [[], [("a", 0.0)]])
def test_nothing_can_be_drawn(values: list[tuple[str, float]]) -> None:
    assert len(list(ElementTree.fromstring(bars("t", values)).iter(f"{SVG}rect"))) == 1 + len(values)


def test_a_path_is_checked_before_and_written_after(tmp_path: Path) -> None:
    check_path(None)
    save(None, "nothing")
    path = tmp_path / "a.svg"
    check_path(str(path))
    save(str(path), "picture")
    assert path.read_text() == "picture"


@pytest.mark.parametrize(
    ("name", "message"),
    [("a.png", "end the path with .svg, not 'a.png'"), ("none/a.svg", "there is no directory .*none")],
)
def test_a_path_that_cannot_be_is_named(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        check_path(str(tmp_path / name))


def test_a_file_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.svg").mkdir()
    with pytest.raises(MachineError, match="the picture cannot be written"):
        save(str(tmp_path / "a.svg"), "picture")
