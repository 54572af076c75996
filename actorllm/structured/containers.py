"""Arrays and objects of a JSON Schema, as EBNF text."""

import json
from collections.abc import Callable
from typing import Any

from . import ebnf
from .automaton import Automaton, TooLong
from .charsets import minus, of
from .keywords import Fail, counts, members, step, texts
from .patterns import parse
from .rules import Rules
from .scalars import inside, pattern

MAX_STATES = 20_000
"""Properties of an object times the counts that have to be told apart."""

MAX_PROPERTIES = 1000
"""Properties of one object: where each may be left out, xgrammar takes seconds for them."""

MAX_NAME = 100
"""Characters of a property's name where others are possible, which have to differ from it."""

Write = Callable[[Any, str], str]
"""Gives the name of the rule for a schema at a JSON path."""


def array(schema: dict[str, Any], path: str, rules: Rules, write: Write, fail: Fail) -> str:
    """An array; all of prefixItems are in it, as far as maxItems lets them."""
    least, most = counts(schema, "minItems", "maxItems", path, fail)
    if schema.get("uniqueItems", False) is not False:
        raise fail(step(path, "uniqueItems"), "the keyword uniqueItems is not enforced; leave it out")
    prefix = schema.get("prefixItems", [])
    if not isinstance(prefix, list):
        raise fail(step(path, "prefixItems"), "must be a list of schemas")
    items = schema.get("items", not prefix)
    if isinstance(items, list):
        raise fail(step(path, "items"), "must be one schema; use prefixItems for several")
    prefix = prefix[:most]
    heads = [write(each, f"{step(path, 'prefixItems')}[{index}]") for index, each in enumerate(prefix)]
    fewest, further = max(0, least - len(heads)), None if most is None else most - len(heads)
    if items is False or further == 0:
        if fewest:
            raise fail(
                step(path, "minItems"), f"{least} is more than the {len(heads)} items that there can be"
            )
        return _listed("[", rules, rules.comma.join(f" {head} " for head in heads), "]")
    item = write(items, step(path, "items"))
    if heads:
        tail = f"({rules.comma} {item}){{{fewest},{'' if further is None else further}}}"
        return _listed("[", rules, f" {rules.comma} ".join(heads) + f" {tail}", "]")
    rest = f"{item} ({rules.comma} {item}){{{max(0, fewest - 1)},{'' if further is None else further - 1}}}"
    return _listed("[", rules, rest if fewest else f"({rest} {rules.ws})?", "]", bool(fewest))


def _listed(opening: str, rules: Rules, inner: str, closing: str, last: bool = True) -> str:
    space = f" {rules.ws}" if last and inner else ""
    return f'"{opening}" {rules.ws} {inner}{space} "{closing}"'


def obj(schema: dict[str, Any], closed: bool, path: str, rules: Rules, write: Write, fail: Fail) -> str:
    """An object: the named properties in order, then others. Where the schema is silent about these, there
    are none, except of an object of which it says nothing at all, when `closed` is False.
    """
    least, most = counts(schema, "minProperties", "maxProperties", path, fail)
    named = dict(members(schema, "properties", path, fail))
    required = set(texts(schema.get("required", []), step(path, "required"), fail))
    silent = not named and not required and "patternProperties" not in schema and not closed
    extra = schema.get("additionalProperties", silent or "propertyNames" in schema)
    for name in texts(schema.get("required", []), step(path, "required"), fail):
        if name not in named:
            if "additionalProperties" in schema and extra is False:
                raise fail(
                    step(path, "required"), f"{name!r} is not among the properties, and no other may be"
                )
            named[name] = extra if "additionalProperties" in schema else True
    other = _others(schema, named, extra, path, rules, write, fail)
    if "maxProperties" in schema and len(required) > (most or 0):
        raise fail(step(path, "maxProperties"), f"{most} is less than the {len(required)} that are required")
    if len(named) > MAX_PROPERTIES:
        raise fail(path, f"more than {MAX_PROPERTIES} properties; make it several objects")
    if len(named) * ((most if most is not None else least) + 1) > MAX_STATES:
        raise fail(path, f"more than {MAX_STATES} properties times the counts of them")
    values = [(name, write(value, step(step(path, "properties"), name))) for name, value in named.items()]
    pairs = [
        (f"{ebnf.literal(_key(name))} {rules.colon} {value}", name in required) for name, value in values
    ]
    body = _chain(pairs, other, least, most, rules)
    if body is None:
        text = f"{least} is more than what there surely can be; write properties for all but one of them"
        raise fail(step(path, "minProperties"), text)
    return f'"{{" {rules.ws} {body}'


def _key(name: str) -> str:
    return json.dumps(name, ensure_ascii=False)


def _others(
    schema: dict[str, Any],
    named: dict[str, Any],
    extra: Any,
    path: str,
    rules: Rules,
    write: Write,
    fail: Fail,
) -> str | None:
    """The members that are not named, key and value; None where there are none."""
    patterns = members(schema, "patternProperties", path, fail)
    if "propertyNames" in schema:
        where = step(path, "propertyNames")
        if named or patterns:
            raise fail(where, "is not possible together with properties, required or patternProperties")
        if extra is False:
            return None
        keys = write(_only_strings(schema["propertyNames"], where, fail), where)
        return f"{keys} {rules.colon} {write(extra, step(path, 'additionalProperties'))}"
    if not patterns:
        if extra is False:
            return None
        _short(named, MAX_NAME, "additionalProperties", path, fail)
        value = write(extra, step(path, "additionalProperties"))
        return f"{_other_key(list(named), rules)} {rules.colon} {value}"
    where = step(path, "patternProperties")
    if len(patterns) > 1 or extra is not False:
        raise fail(where, "must be one pattern only, and additionalProperties must be false or left out")
    [(text, value)] = patterns.items()
    node = pattern(text, step(where, text), fail)
    _short(named, MAX_NAME, "patternProperties", path, fail)
    if clash := _clash(text, list(named), step(where, text), fail):
        raise fail(step(where, text), f"the property {clash!r} matches, too, which is not possible")
    return f"{inside(node)} {rules.colon} {write(value, step(where, text))}"


def _clash(text: str, names: list[str], path: str, fail: Fail) -> str | None:
    """The first of the names in which a pattern is found by any reading of it."""
    try:
        automaton = Automaton(parse(text, wide=True), max(map(len, names), default=0))
        return next((name for name in names if automaton.found(name)), None)
    except TooLong as error:
        raise fail(path, f"the pattern {error}; make it simpler, or leave out patternProperties") from error


def _short(named: dict[str, Any], most: int, beside: str, path: str, fail: Fail) -> None:
    for name in named:
        if len(name) > most:
            text = f"a name of more than {most} characters is not possible beside {beside}"
            raise fail(step(step(path, "properties"), name), text)


def _only_strings(names: Any, path: str, fail: Fail) -> Any:
    """The schema of property names, which must be of texts at first sight."""
    if names is True:
        return {"type": "string"}
    if isinstance(names, dict):
        values = names.get("enum", [names["const"]] if "const" in names else [])
        if isinstance(values, list) and values and all(isinstance(value, str) for value in values):
            return names
        if not values and names.get("type", "string") == "string" and "$ref" not in names:
            return {"type": "string", **names}
    raise fail(path, "must be a schema of type string, or an enum or const of texts")


def _other_key(names: list[str], rules: Rules) -> str:
    """A key that is none of these, spelled without escapes."""
    rest = rules.add(f'{ebnf.one_of(ebnf.PLAIN)}* "\\""')
    words = [name for name in names if _key(name)[1:-1] == name]
    if not words:
        return f'"\\"" {rest}'
    return f'"\\"" {_not_of(words, rest, rules)}'


def _not_of(words: list[str], rest: str, rules: Rules) -> str:
    """The rest of a key, up to its quote, that is none of these words, of which there are some."""
    groups: dict[str, list[str]] = {}
    for word in words:
        if word:
            groups.setdefault(word[0], []).append(word[1:])
    other = minus(ebnf.PLAIN, of("".join(groups)))
    parts = [] if "" in words else ['"\\""']
    parts.append(f"{ebnf.one_of(other)} {rest}")
    for char, tails in groups.items():
        parts.append(f"{ebnf.literal(char)} {_not_of(tails, rest, rules)}")
    return rules.add(" | ".join(parts))


def _chain(
    pairs: list[tuple[str, bool]], other: str | None, least: int, most: int | None, rules: Rules
) -> str | None:
    """All that follows the opening brace: the pairs in order, of which those that are not required may be
    left out, then others, with `least` to `most` in all; None when there is no such object.
    """
    if not pairs:
        return _end(0, other, least, most, rules)
    cap = max(1, least if most is None else most)
    # after[n] is what may follow once n are written, or more when n is cap and nothing bounds them
    after = [_end(n, other, least, most, rules) for n in range(cap + 1)]
    for pair, required in reversed(pairs):
        ahead = after
        after = []
        for n in range(cap + 1):
            follow = None if most is not None and n >= most else ahead[min(n + 1, cap)]
            comma = f"{rules.comma} " if n else ""
            ways = [] if follow is None else [f"{comma}{pair} {follow}"]
            if not required and (skip := ahead[n]) is not None:
                ways.append(skip)
            after.append(rules.add(" | ".join(ways)) if ways else None)
    return after[0]


def _end(n: int, other: str | None, least: int, most: int | None, rules: Rules) -> str | None:
    """Others after `n` members, and the closing brace. Keys may repeat, so they surely add one only."""
    needed, room = max(0, least - n), None if most is None else most - n
    close = f'{rules.ws} "}}"' if n else '"}"'
    if other is None or room == 0:
        return None if needed else rules.add(close)
    if needed > 1 or (room is not None and room < 0):
        return None
    if n:
        return rules.add(f"({rules.comma} {other}){{{needed},{'' if room is None else room}}} {close}")
    further = f"({rules.comma} {other}){{0,{'' if room is None else room - 1}}}"
    first = f'{other} {further} {rules.ws} "}}"'
    return rules.add(first if needed else f"{close} | {first}")
