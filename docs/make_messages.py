"""Print docs/messages.md: every message with its fields, from the classes themselves.

Usage: python docs/make_messages.py > docs/messages.md
"""

import inspect
import sys
from dataclasses import MISSING, fields
from typing import Any

from actorllm.engine.topology import EDGES
from actorllm.messages import MESSAGES


def name_of(annotation: Any) -> str:
    """An annotation as one writes it."""
    return annotation.__name__ if isinstance(annotation, type) else str(annotation)


def roads(cls: type[Any]) -> list[str]:
    """Who says it to whom."""
    return [f"{edge.source} → {edge.target}" for edge in EDGES if cls in edge.messages]


def describe(tag: int, cls: type[Any]) -> str:
    """One message: title, roads, contract, fields."""
    lines = [f"## {cls.__name__} ({tag})", ""]
    if roads(cls):
        lines += [", ".join(roads(cls)), ""]
    lines += [inspect.cleandoc(cls.__doc__ or ""), ""]
    for field in fields(cls):
        default = "" if field.default is MISSING else f" = {field.default!r}"
        kind = name_of(field.type).replace("actorllm.messages.request.", "").replace("actorllm.messages.", "")
        lines.append(f"- `{field.name}: {kind}{default}`")
    return "\n".join(lines)


def page() -> str:
    """The whole page."""
    head = (
        "# Messages\n\nEvery message, with its tag on the wire, its roads through the ring and its fields. "
        "Made by `python docs/make_messages.py`.\n"
    )
    return "\n\n".join([head.rstrip(), *(describe(tag, cls) for tag, cls in sorted(MESSAGES.items()))]) + "\n"


if __name__ == "__main__":
    sys.stdout.write(page())
