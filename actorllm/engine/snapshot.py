"""The state of a core as bytes, and back.

A snapshot is a pickle, but of a narrow kind: it names only classes of `actorllm.cores` and
`actorllm.messages`, and the few of Python's own that cores are made of. Both ends hold to that, so what
cannot be read is not written, and a foreign file cannot name anything that would do harm, nor change
anything that it has not made.
"""

import io
import pickle
from collections.abc import Sequence
from enum import Enum
from typing import Any

from ..cores import Core
from ..errors import DecodeError
from .loader import Loader, is_ours, may_be_named


def save(core: Core[Any, Any], shared: Sequence[object]) -> bytes:
    """The state of the core. Objects in `shared` are not in it; `load` is given its own in the same order.

    Raises TypeError for a core that holds what cannot be saved, and names it.
    """
    data = io.BytesIO()
    saver = _Saver(data, protocol=5)
    # as if they had been saved before: persistent_id would be asked for every number, at ten times the cost
    saver.memo = {id(each): (index, each) for index, each in enumerate(shared)}
    try:
        saver.dump(core)
    except (pickle.PicklingError, AttributeError, RecursionError) as error:
        raise TypeError(str(error)) from error
    return data.getvalue()


def load(data: bytes, shared: Sequence[object]) -> Core[Any, Any]:
    """The core with this state. Raises DecodeError for any other bytes; none of them can run foreign code."""
    try:
        core: Core[Any, Any] = Loader(data, shared).load()
    except Exception as error:  # bytes that are no pickle of ours can raise nearly anything
        raise DecodeError(str(error) or type(error).__name__) from error
    if not (is_ours(type(core).__module__) and hasattr(core, "poll")):
        raise DecodeError(f"it is a {type(core).__name__}, and no core")
    return core


class _Saver(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Asked for everything but Python's basic types; classes and functions are those with such names."""
        if isinstance(value, Enum):  # Python 3.11 has had two ways to name a member
            return type(value), (value.value,)
        name = getattr(value, "__qualname__", None)
        if isinstance(name, str) and not may_be_named(value.__module__, name):
            raise TypeError(f"it holds {value.__module__}.{name}, which no recording may name")
        return NotImplemented
