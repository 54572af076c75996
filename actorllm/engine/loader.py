"""The reading of a snapshot: a pickle of our own kind, that may come from a stranger.

Whatever the bytes are, none of them can reach what was there before the reading: a class is never a value,
and what is given attributes or items was made by the same bytes. Nor can they claim more memory than is
there, or nest what Python cannot take apart.
"""

import io
import pickle
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Sequence
from enum import Enum
from typing import Any, ClassVar

_PACKAGES = ("actorllm.cores.", "actorllm.messages.")

_PLAIN = frozenset(
    {
        ("builtins", "range"),
        ("collections", "OrderedDict"),
        ("collections", "deque"),
        ("encodings.utf_8", "IncrementalDecoder"),
    }
)
"""What cores are made of besides their own classes and the kinds of values that have an opcode."""

_CALLS: frozenset[tuple[type, tuple[type, ...]]] = frozenset(
    {
        (OrderedDict, ()),
        (deque, ()),
        (deque, (tuple, int)),
        (range, (int, int, int)),
    }
)
"""What is called, and with what; the contents of a container come after it."""

DEEPEST = 64
"""How deep tuples may lie within tuples; Python crashes when it hashes very deep ones."""

_VALUES = (
    *(pickle.NONE, pickle.NEWTRUE, pickle.NEWFALSE, pickle.BININT, pickle.BININT1, pickle.BININT2),
    *(pickle.LONG1, pickle.LONG4, pickle.BINFLOAT, pickle.SHORT_BINBYTES, pickle.BINBYTES, pickle.BINBYTES8),
    *(pickle.SHORT_BINUNICODE, pickle.BINUNICODE, pickle.BINUNICODE8),
    *(pickle.EMPTY_TUPLE, pickle.EMPTY_LIST, pickle.EMPTY_DICT, pickle.EMPTY_SET, pickle.FROZENSET),
)
_FRAMING = (
    *(pickle.PROTO, pickle.FRAME, pickle.STOP, pickle.MARK),
    *(pickle.MEMOIZE, pickle.BINGET, pickle.LONG_BINGET),
)


def may_be_named(module: str, name: str) -> bool:
    """Whether a class of this name may be in a snapshot."""
    return "." not in name and ((module, name) in _PLAIN or is_ours(module))


def is_ours(module: str) -> bool:
    """Whether the classes of this module are those of cores and messages."""
    return module.startswith(_PACKAGES)


class Loader(pickle._Unpickler):
    """Knows the opcodes that a snapshot is written with, and no others.

    It is Python's own unpickler, the one that is written in Python: slower, but each opcode can be guarded.
    """

    dispatch: ClassVar[dict[int, Callable[[Any], None]]] = {}
    stack: list[Any]
    metastack: list[list[Any]]
    memo: dict[int, Any]

    def __init__(self, data: bytes, shared: Sequence[object]) -> None:
        """`shared` stand for what was memoized first."""
        super().__init__(io.BytesIO(data), fix_imports=False)
        self.memo = dict(enumerate(shared))
        self._shared = frozenset(map(id, shared))
        self._depths: dict[int, int] = {}

    def find_class(self, module: str, name: str) -> Any:
        """A class that may be in a snapshot, and that is at home in that very module."""
        if not may_be_named(module, name):
            raise pickle.UnpicklingError(f"it names {module}.{name}, which no recording may name")
        found = super().find_class(module, name)
        if not isinstance(found, type) or found.__module__ != module:
            raise pickle.UnpicklingError(f"it names {module}.{name}, which is no class of that module")
        return found

    def refuse(self) -> None:
        """Any other opcode."""
        raise pickle.UnpicklingError("it holds an opcode that no recording has")

    def name(self) -> None:
        """STACK_GLOBAL: a class, under a name that only `make` and `call` understand."""
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(_Named(self.find_class(module, name)))

    def make(self) -> None:
        """NEWOBJ: an instance without attributes."""
        arguments, kind = self.stack.pop(), _class_of(self.stack.pop())
        if arguments != () or (is_ours(kind.__module__) and issubclass(kind, Enum)):
            raise pickle.UnpicklingError(f"it makes a {kind.__name__} in a way that no recording does")
        self.stack.append(object.__new__(kind))

    def call(self) -> None:
        """REDUCE: an empty container, a range, or the member of an Enum."""
        arguments, kind = self.stack.pop(), _class_of(self.stack.pop())
        types = tuple(map(type, arguments))
        is_member = issubclass(kind, Enum) and types in ((int,), (str,))
        if not (is_member or (kind, types) in _CALLS) or (kind is deque and any(arguments[:1])):
            raise pickle.UnpicklingError(f"it calls {kind.__name__} in a way that no recording does")
        self.stack.append(kind(*arguments))

    def note_depth(self) -> None:
        """The tuple on top is a new one."""
        depths = [self._depths.get(id(each), 1) for each in self.stack[-1] if type(each) is tuple]
        depth = self._depths[id(self.stack[-1])] = 1 + max(depths, default=0)
        if depth > DEEPEST:
            raise pickle.UnpicklingError(f"it nests tuples deeper than {DEEPEST}")

    def check_appended(self) -> None:
        """APPEND: the target lies below the item."""
        self._check_list(self.stack[-2], self.stack[-1:])

    def check_extended(self) -> None:
        """APPENDS: the target lies below the mark."""
        self._check_list(self.metastack[-1][-1], self.stack)

    def check_item_set(self) -> None:
        """SETITEM: the target lies below key and value."""
        self._check_target(self.stack[-3], (dict, OrderedDict))

    def check_items_set(self) -> None:
        """SETITEMS: the target lies below the mark."""
        self._check_target(self.metastack[-1][-1], (dict, OrderedDict))

    def check_items_added(self) -> None:
        """ADDITEMS: the target lies below the mark."""
        self._check_target(self.metastack[-1][-1], (set,))

    def check_built(self) -> None:
        """Refuse to give attributes to what is no instance that `make` has made."""
        kind = type(self.stack[-2])
        ours = is_ours(kind.__module__) and not issubclass(kind, Enum)
        if not (ours or (kind.__module__, kind.__name__) in _PLAIN) or id(self.stack[-2]) in self._shared:
            raise pickle.UnpicklingError(f"it changes a {kind.__name__}, as no recording does")

    def _check_target(self, target: Any, kinds: Collection[type]) -> None:
        """Refuse to put items into what is no such container, or was there before."""
        if type(target) not in kinds or id(target) in self._shared:
            raise pickle.UnpicklingError(f"it changes a {type(target).__name__}, as no recording does")

    def _check_list(self, target: Any, items: list[Any]) -> None:
        self._check_target(target, (list, deque))
        if type(target) is deque and deque in map(type, items):
            raise pickle.UnpicklingError(
                "it puts a deque into a deque; Python crashes when it frees deep ones"
            )


class _Named:
    """Stands for a class on the stack and in the memo, so that nobody can change the class itself."""

    __slots__ = ("kind",)

    def __init__(self, kind: type) -> None:
        self.kind = kind


def _class_of(named: Any) -> type:
    if type(named) is not _Named:
        raise pickle.UnpicklingError(f"it calls a {type(named).__name__}, which is no class")
    return named.kind


def _after(check: Callable[[Loader], None], code: bytes) -> Callable[[Any], None]:
    """What the opcode does, if the check does not raise."""
    plain = pickle._Unpickler.dispatch[code[0]]

    def load(loader: Any) -> None:
        check(loader)
        plain(loader)

    return load


def _before(code: bytes, note: Callable[[Loader], None]) -> Callable[[Any], None]:
    """What the opcode does, and then the note."""
    plain = pickle._Unpickler.dispatch[code[0]]

    def load(loader: Any) -> None:
        plain(loader)
        note(loader)

    return load


_TUPLES = (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)

Loader.dispatch |= {
    **dict.fromkeys(range(256), Loader.refuse),
    **{code[0]: pickle._Unpickler.dispatch[code[0]] for code in (*_VALUES, *_FRAMING)},
    pickle.STACK_GLOBAL[0]: Loader.name,
    pickle.NEWOBJ[0]: Loader.make,
    pickle.REDUCE[0]: Loader.call,
    pickle.BUILD[0]: _after(Loader.check_built, pickle.BUILD),
    pickle.APPEND[0]: _after(Loader.check_appended, pickle.APPEND),
    pickle.APPENDS[0]: _after(Loader.check_extended, pickle.APPENDS),
    pickle.SETITEM[0]: _after(Loader.check_item_set, pickle.SETITEM),
    pickle.SETITEMS[0]: _after(Loader.check_items_set, pickle.SETITEMS),
    pickle.ADDITEMS[0]: _after(Loader.check_items_added, pickle.ADDITEMS),
    **{code[0]: _before(code, Loader.note_depth) for code in _TUPLES},
}
