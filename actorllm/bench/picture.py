"""A picture of a few numbers: horizontal bars, as SVG."""

from collections.abc import Sequence
from pathlib import Path
from xml.sax.saxutils import escape

from ..errors import MachineError, UsageError

LEFT, BAR, RIGHT, ROW, TOP = 250, 400, 110, 26, 40
"""Pixels: the labels, the longest bar, the numbers behind it, a row, and the title."""


def check_path(path: str | None) -> None:
    """Raise UsageError for a picture that cannot be written, before anything is measured."""
    if path is None:
        return
    if not path.endswith(".svg"):
        raise UsageError(f"a picture is written as SVG: end the path with .svg, not {Path(path).name!r}")
    if not Path(path).absolute().parent.is_dir():
        raise UsageError(f"there is no directory {Path(path).parent} for the picture")


def bars(title: str, values: Sequence[tuple[str, float]]) -> str:
    """An SVG document with a bar for each value; the longest is the largest."""
    width, height = LEFT + BAR + RIGHT, TOP + ROW * len(values) + 12
    most = max((value for _, value in values), default=0.0) or 1.0
    rows = [
        _row(TOP + ROW * index, label, value, value / most) for index, (label, value) in enumerate(values)
    ]
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
            f'<rect width="{width}" height="{height}" fill="white"/>',
            f'<text x="12" y="24" font-size="15" font-weight="bold">{escape(title)}</text>',
            *rows,
            "</svg>\n",
        ]
    )


def save(path: str | None, picture: str) -> None:
    """Write it, if there is a path. Raises MachineError."""
    if path is None:
        return
    try:
        Path(path).write_text(picture, encoding="utf-8")
    except OSError as error:
        raise MachineError(f"the picture cannot be written: {error}") from error


def _row(y: int, label: str, value: float, share: float) -> str:
    length = BAR * max(0.0, share)
    return (
        f'<text x="{LEFT - 8}" y="{y + 15}" text-anchor="end">{escape(label)}</text>'
        f'<rect x="{LEFT}" y="{y + 2}" width="{length:.1f}" height="{ROW - 8}" fill="#4477aa"/>'
        f'<text x="{LEFT + length + 6:.1f}" y="{y + 15}">{value:,.1f}</text>'
    )
