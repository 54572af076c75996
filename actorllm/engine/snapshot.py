"""The state of a core as bytes, and back.

A snapshot is a pickle, but of a narrow kind: it names only classes of `actorllm.cores` and
`actorllm.messages`, and the few of Python's own that cores are made of. Both ends hold to that, so what
cannot be read is not written, and a foreign file cannot name anything that would do harm.
"""

import io
import pickle
from collections.abc import Sequence
from typing import Any

from ..cores import Core
from ..errors import DecodeError

_PACKAGES = ("actorllm.cores.", "actorllm.messages.")

_PLAIN = frozenset(
    {
        ("builtins", "dict"),
        ("builtins", "int"),
        ("builtins", "list"),
        ("builtins", "range"),
        ("builtins", "set"),
        ("collections", "Counter"),
        ("collections", "OrderedDict"),
        ("collections", "defaultdict"),
        ("collections", "deque"),
        ("encodings.utf_8", "IncrementalDecoder"),
    }
)
"""What cores are made of besides their own classes."""


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
    loader = _Loader(io.BytesIO(_prelude(len(shared)) + data), fix_imports=False)
    loader.shared = shared
    try:
        loader.load()
        core: Core[Any, Any] = loader.load()
    except Exception as error:  # bytes that are no pickle of ours can raise nearly anything
        raise DecodeError(f"{error or type(error).__name__}") from error
    if not (type(core).__module__.startswith(_PACKAGES) and hasattr(core, "poll")):
        raise DecodeError(f"it is a {type(core).__name__}, and no core")
    return core


class _Saver(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        """Asked for everything but Python's basic types; classes and functions are those with such names."""
        name = getattr(value, "__qualname__", None)
        if isinstance(name, str) and not _is_known(value.__module__, name):
            raise TypeError(f"it holds {value.__module__}.{name}, which no recording may name")
        return NotImplemented


class _Loader(pickle.Unpickler):
    shared: Sequence[object] = ()

    def find_class(self, module: str, name: str) -> Any:
        """A class that may be in a snapshot, and that is at home in that very module."""
        if not _is_known(module, name):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no recording may name")
        found = super().find_class(module, name)
        if not isinstance(found, type) or found.__module__ != module:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no class of that module")
        return found

    def persistent_load(self, pid: Any) -> Any:
        """One of the objects that are in no snapshot."""
        return self.shared[pid]


def _prelude(count: int) -> bytes:
    """A pickle that takes so many objects from `persistent_load`, and so puts them first into the memo."""
    one = [pickle.BININT1 + bytes([index]) + pickle.BINPERSID + pickle.MEMOIZE for index in range(count)]
    return pickle.PROTO + bytes([5]) + b"".join(each + pickle.POP for each in one) + pickle.NONE + pickle.STOP


def _is_known(module: str, name: str) -> bool:
    return "." not in name and ((module, name) in _PLAIN or module.startswith(_PACKAGES))
