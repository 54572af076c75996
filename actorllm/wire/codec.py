"""Messages as bytes: MessagePack arrays `[tag, field, ...]` without field names.

Trailing fields that equal their default are left out, so a new field at the end costs nothing and
an old recording still decodes. The annotations of a message class are compiled once into tables
"type of the value -> what to do with it"; encoding and decoding then only look things up.
"""

import types
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, fields
from operator import attrgetter
from typing import Any, Union, cast, get_args, get_origin, get_type_hints

import msgpack

from ..errors import DecodeError
from ..messages import MESSAGES, Message

MAX_BYTES = 1 << 28
"""The largest encoding. The biggest honest message is a RunStep that brings every prompt again."""

_SMALL = 1024
"""Up to this many bytes, arrays that claim more than there is can cost 3 MB at the very most."""

_INT64 = range(-(2**63), 2**63)

_WIRE_NAMES: dict[type[Any], str] = {
    type(None): "None",
    tuple: "array",
    dict: "map",
    msgpack.ExtType: "extension",
    msgpack.Timestamp: "extension",
}

Convert = Callable[[Any], Any]


class _MisfitError(Exception):
    """A value that does not fit its place; `trail` is its path, innermost part first."""

    def __init__(self, problem: str) -> None:
        super().__init__(problem)
        self.trail: list[str] = []

    def describe(self, root: str) -> str:
        return f"{root}{''.join(reversed(self.trail))}: {self}"


class _Table(dict[type[Any], Convert | None]):
    """What to do with a value of a type in one place: None to take it as it is, or a conversion."""

    def __init__(self, expected: str) -> None:
        super().__init__()
        self.expected = expected

    def __missing__(self, kind: type[Any]) -> Convert:
        return self.refuse

    def refuse(self, value: Any) -> Any:
        raise _MisfitError(f"expected {self.expected}, got {_name(type(value))}")


class Codec:
    """Encodes and decodes the message classes in `classes` (by tag).

    A class may hold `int` (within int64), `float`, `bool`, `str`, `bytes`, `None`, `tuple[T, ...]`,
    other classes of `classes` (not itself) and unions of these with at most one tuple and no message
    beside it. Raises TypeError for a class that holds anything else.
    """

    def __init__(self, classes: Mapping[int, type[Any]]) -> None:
        self._tags = {cls: tag for tag, cls in classes.items()}
        self._names = {tag: cls.__name__ for tag, cls in classes.items()}
        self._writers: dict[type[Any], Convert] = {}
        self._readers: dict[int, Convert] = {}
        for cls in classes.values():
            self._compile(cls)

    def encode(self, message: Any) -> bytes:
        """The message as bytes. Raises TypeError, with the path, for a value that its field forbids."""
        write = self._writers.get(type(message))
        if write is None:
            raise TypeError(f"{type(message).__name__} is not a message")
        try:
            return cast(bytes, msgpack.packb(write(message), unicode_errors="surrogatepass"))
        except _MisfitError as misfit:
            raise TypeError(misfit.describe(type(message).__name__)) from None

    def decode(self, data: bytes) -> Any:
        """The message in `data`. Raises DecodeError for any other bytes whatever, and nothing else.

        Takes memory in proportion to the bytes that are there, not to the sizes that they claim.
        """
        raw = _unpack(data)
        root = "message"
        try:
            tag = self._tag_of(raw)
            root = self._names[tag]
            return self._readers[tag](raw)
        except _MisfitError as misfit:
            raise DecodeError(misfit.describe(root)) from None

    def _tag_of(self, raw: Any) -> int:
        if type(raw) is not tuple or not raw or type(raw[0]) is not int:
            what = "an array without a tag" if type(raw) is tuple else _name(type(raw))
            raise _MisfitError(f"expected a message, got {what}")
        if raw[0] not in self._names:
            raise _MisfitError(f"unknown tag {raw[0]}")
        return raw[0]

    def _compile(self, cls: type[Any]) -> None:
        hints = get_type_hints(cls)
        names = [field.name for field in fields(cls)]
        defaults = [field.default for field in fields(cls)]
        kinds = [_alternatives(hints[name]) for name in names]
        tag = self._tags[cls]
        try:
            self._writers[cls] = _write_message(tag, names, defaults, list(map(self._writing, kinds)))
            self._readers[tag] = _read_message(cls, names, defaults, list(map(self._reading, kinds)))
        except TypeError as error:
            raise TypeError(f"{cls.__name__} cannot travel: {error}") from None

    def _writing(self, kinds: tuple[Any, ...]) -> _Table:
        table = _plain(kinds)
        for kind in kinds:
            if get_origin(kind) is tuple:
                table[tuple] = _items(self._writing(_element(kind)))
            elif kind in self._tags:
                table[kind] = self._write
            elif kind not in table:
                raise TypeError(f"no place for {kind!r}")
        return table

    def _write(self, message: Any) -> Any:
        return self._writers[type(message)](message)

    def _reading(self, kinds: tuple[Any, ...]) -> _Table:
        table = _plain(kinds)
        arrays = [_items(self._reading(_element(kind))) for kind in kinds if get_origin(kind) is tuple]
        tags = frozenset(self._tags[kind] for kind in kinds if kind in self._tags)
        if tags:
            arrays.append(self._one_of(tags, table.expected))
        if len(arrays) > 1:
            raise TypeError(f"{table.expected} is ambiguous")
        if arrays:
            table[tuple] = arrays[0]
        return table

    def _one_of(self, tags: frozenset[int], expected: str) -> Convert:
        def read(raw: Any) -> Any:
            tag = self._tag_of(raw)
            if tag not in tags:
                raise _MisfitError(f"expected {expected}, got {self._names[tag]}")
            return self._readers[tag](raw)

        return read


def _unpack(data: bytes) -> Any:
    if len(data) > MAX_BYTES:
        raise DecodeError(f"message: {len(data)} bytes, at most {MAX_BYTES} allowed")
    try:
        if len(data) > _SMALL:
            _walk(data)
        return msgpack.unpackb(
            data, use_list=False, unicode_errors="surrogatepass", max_map_len=0, max_ext_len=0
        )
    except (ValueError, msgpack.UnpackException) as error:
        raise DecodeError(f"message: {str(error) or type(error).__name__}") from None


def _walk(data: bytes) -> None:
    """Raise when an array claims more elements than there are, before room is made for any of them."""
    walker = msgpack.Unpacker(read_size=len(data), max_buffer_size=len(data))
    walker.feed(data)
    walker.skip()


def _write_message(tag: int, names: list[str], defaults: list[Any], tables: list[_Table]) -> Convert:
    every = [attrgetter(name) for name in names]
    least = _required(defaults)

    def write(message: Any) -> list[Any]:
        values = [get(message) for get in every]
        count = len(values)
        while count > least and _same(values[count - 1], defaults[count - 1]):
            count -= 1
        return [tag, *_fields(names, tables, values[:count])]

    return write


def _read_message(cls: type[Any], names: list[str], defaults: list[Any], tables: list[_Table]) -> Convert:
    least, most = _required(defaults), len(names)

    def read(raw: tuple[Any, ...]) -> Any:
        count = len(raw) - 1
        if count > most:
            raise _MisfitError(f"{count} fields, at most {most} known")
        values = _fields(names, tables, raw[1:])
        if count < least:
            missing = _MisfitError("missing")
            missing.trail.append(f".{names[count]}")
            raise missing
        return cls(*values)

    return read


def _fields(names: list[str], tables: list[_Table], values: Iterable[Any]) -> list[Any]:
    done: list[Any] = []
    try:
        for table, value in zip(tables, values, strict=False):
            convert = table[type(value)]
            done.append(value if convert is None else convert(value))
    except _MisfitError as misfit:
        misfit.trail.append(f".{names[len(done)]}")
        raise
    return done


def _items(table: _Table) -> Convert:
    def convert_all(values: tuple[Any, ...]) -> tuple[Any, ...]:
        done: list[Any] = []
        try:
            for value in values:
                convert = table[type(value)]
                done.append(value if convert is None else convert(value))
        except _MisfitError as misfit:
            misfit.trail.append(f"[{len(done)}]")
            raise
        return tuple(done)

    return convert_all


def _plain(kinds: tuple[Any, ...]) -> _Table:
    table = _Table(" | ".join(_name(kind) for kind in kinds))
    for kind in kinds:
        if kind in (str, bytes, bool, float, type(None)):
            table[kind] = None
    if int in kinds:
        table[int] = _within_int64
    elif float in kinds:
        table[int] = _as_float
    return table


def _within_int64(value: int) -> int:
    if value not in _INT64:
        raise _MisfitError("expected an int within int64, got a larger one")
    return value


def _as_float(value: int) -> float:
    return float(_within_int64(value))


def _same(value: Any, default: Any) -> bool:
    """Whether nothing is lost when `default` stands for `value`: 1, True and 1.0 differ, and so does -0.0."""
    return value is default or (
        type(value) is type(default) and bool(value == default) and repr(value) == repr(default)
    )


def _required(defaults: list[Any]) -> int:
    return sum(default is MISSING for default in defaults)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    if get_origin(annotation) in (Union, types.UnionType):
        return get_args(annotation)
    return (annotation,)


def _element(kind: Any) -> tuple[Any, ...]:
    element, *rest = get_args(kind)
    if rest != [...]:
        raise TypeError(f"{kind!r} has a fixed length")
    return _alternatives(element)


def _name(kind: Any) -> str:
    if get_origin(kind) is tuple:
        return "array"
    return _WIRE_NAMES.get(kind) or str(kind.__name__)


_CODEC = Codec(MESSAGES)


def encode(message: Message) -> bytes:
    """The message as bytes. Raises TypeError, with the path, for a value that its field forbids."""
    return _CODEC.encode(message)


def decode(data: bytes) -> Message:
    """The message in `data`. Raises DecodeError for any other bytes whatever, and nothing else.

    A part of a message (a Fault, a Sampling) is accepted on its own too; it is for the actor to refuse.
    """
    return cast(Message, _CODEC.decode(data))
