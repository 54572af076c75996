"""Hypothesis strategies for messages, derived from the annotations of their classes."""

import types
from dataclasses import MISSING, fields
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from ..messages import MESSAGES, Message

T = TypeVar("T")

_SCALARS: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=False),
    bool: st.booleans(),
    str: st.text(st.characters(), max_size=20),
    bytes: st.binary(max_size=40),
    type(None): st.none(),
}


def messages() -> st.SearchStrategy[Message]:
    """Any registered message, with any fields that its annotations allow but NaN (it equals nothing)."""
    return st.sampled_from(sorted(MESSAGES)).flatmap(lambda tag: message_of(MESSAGES[tag]))


def message_of(cls: type[T]) -> st.SearchStrategy[T]:
    """Messages of one class; the fields that have a default often keep it."""
    return cast(st.SearchStrategy[T], _message_of(cls))


def _message_of(cls: type[Any]) -> st.SearchStrategy[Any]:
    hints = get_type_hints(cls)
    required = {f.name: _value_of(hints[f.name]) for f in fields(cls) if f.default is MISSING}
    optional = {f.name: _value_of(hints[f.name]) for f in fields(cls) if f.default is not MISSING}
    return st.fixed_dictionaries(required, optional=optional).map(lambda values: cls(**values))


def _value_of(annotation: Any) -> st.SearchStrategy[Any]:
    if annotation in _SCALARS:
        return _SCALARS[annotation]
    if get_origin(annotation) in (Union, types.UnionType):
        return st.one_of([_value_of(kind) for kind in get_args(annotation)])
    if get_origin(annotation) is tuple:
        return st.lists(_value_of(get_args(annotation)[0]), max_size=3).map(tuple)
    return _message_of(annotation)
