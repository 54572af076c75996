"""Options made of the fields of a dataclass, so that nothing is said twice."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import Field, fields
from functools import wraps
from typing import Annotated, Any, get_type_hints

import typer

Command = Callable[..., None]

TEXTS = tuple[str, ...]


def spread(
    parameter: str, cls: type[Any], names: Sequence[str], **defaults: Any
) -> Callable[[Command], Command]:
    """Give a command, instead of the parameter that takes a `cls`, an option for each field of these names.

    The options have the fields' names, types and defaults (but for `defaults`), and their help is the
    docstring of `cls`, whose lines begin with the names. A field called `model` becomes an argument, unless
    its metadata has `flags`: these are then what the option is called. The option of a tuple of texts may be
    repeated.
    """
    descriptions = describe(cls)
    hints = get_type_hints(cls)
    known = {field.name: field for field in fields(cls)}
    options = [
        _option(known[name], hints[name], descriptions.get(name), cls.__name__, defaults) for name in names
    ]

    def decorate(command: Command) -> Command:
        @wraps(command)
        def spread_command(**given: Any) -> None:
            made = cls(**{name: _value(hints[name], given.pop(name)) for name in names})
            command(**given, **{parameter: made})

        kept = [own for own in inspect.signature(command).parameters.values() if own.name != parameter]
        signature = inspect.Signature([*kept, *options], return_annotation=None)
        spread_command.__signature__ = signature  # type: ignore[attr-defined]
        spread_command.__annotations__ = {own.name: own.annotation for own in signature.parameters.values()}
        return spread_command

    return decorate


def describe(cls: type[Any]) -> dict[str, str]:
    """What the docstring of a class says of each field: lines that begin with its name, and what is
    indented below them.
    """
    names = {field.name for field in fields(cls)}
    found: dict[str, str] = {}
    name = ""
    for line in inspect.cleandoc(cls.__doc__ or "").splitlines():
        first, _, rest = line.partition(" ")
        if first in names:
            name, found[first] = first, rest.strip()
        elif name and not first and line.strip():
            found[name] += f" {line.strip()}"
        else:
            name = ""
    return found


def _option(
    field: "Field[Any]", hint: Any, description: str | None, panel: str, defaults: dict[str, Any]
) -> inspect.Parameter:
    flags = field.metadata.get("flags", ())
    make = typer.Argument if field.name == "model" and not flags else typer.Option
    default = defaults.get(field.name, field.default)
    if hint == TEXTS:
        hint, default = list[str] | None, list(default) or None
    return inspect.Parameter(
        field.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=default,
        annotation=Annotated[hint, make(*flags, help=description, rich_help_panel=panel)],
    )


def _value(hint: Any, given: Any) -> Any:
    """What was given, as the field wants it."""
    return tuple(given or ()) if hint == TEXTS else given
