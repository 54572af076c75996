"""What a model of random weights writes under the grammars: calls that parse, with valid arguments."""

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest

from actorllm import SamplingParams
from actorllm.errors import InvalidRequest
from actorllm.parsing import (
    REASONING_FORMATS,
    TOOL_FORMATS,
    Function,
    Parser,
    behind_reasoning,
    structured_outputs,
)
from actorllm.structured import spec

from ..structured.sampling import EOS, SIZE, SPECIAL, allowed, fits, masks_of, new_grammars, pieces
from .told import Called, Thought, Told, told

POINT = {
    "type": "object",
    "properties": {"x": {"type": "integer", "minimum": 0, "maximum": 99}, "text": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
}
PICK = {"properties": {"kind": {"enum": ["</tool_call>", ";"]}}, "required": ["kind"]}
LOOSE = {"type": "object", "properties": {"a": {"not": {}}}}

TOOLS = [Function("point", POINT, strict=True), Function("pick", PICK), Function("loose", LOOSE)]
SCHEMAS: dict[str, Any] = {"point": POINT, "pick": {"type": "object", **PICK}, "loose": {"type": "object"}}

FORMATS = ["hermes", "llama3_json", "mistral", "mistral_args"]
THINK = REASONING_FORMATS["think"]


def outputs(given: dict[str, Any], count: int, before: str = "", limit: int = 400) -> Iterator[str]:
    """Texts of random weights that have ended, and begin with `before`. Free text may be no UTF-8."""
    grammars, text = new_grammars(), spec(given)
    grammars.compile(text)
    for seed in range(count):
        draw = random.Random(seed)
        grammars.open(seed, text)
        output = list(before.encode())
        assert grammars.accept(seed, output) is None
        while len(output) < limit and output[-1:] not in ([EOS[0]], [EOS[1]]):
            bits = allowed(masks_of(grammars, seed))[:SIZE]
            ends = [token for token in EOS if bits[token]]
            ids = ends if ends and draw.random() < 0.5 else np.flatnonzero(bits).tolist()
            token = draw.choice(ids)
            assert token in EOS or token not in SPECIAL
            assert grammars.accept(seed, [token]) is None
            output.append(token)
        grammars.close(seed)
        if output[-1] in EOS:
            yield b"".join(pieces()[token] for token in output[:-1]).decode(errors="replace")


def read(text: str, form: str) -> Told:
    parser = Parser(THINK, TOOL_FORMATS[form], list(SCHEMAS), in_reasoning="</think>" in text)
    return told([*parser.feed(text), *parser.finish()])


def checked(calls: Told, schemas: dict[str, Any] = SCHEMAS) -> list[str]:
    """The names of the calls, of which all must be some, with valid arguments."""
    for each in calls:
        assert isinstance(each, Called), calls
        jsonschema.validate(json.loads(each.arguments), schemas[each.name])
    return [each.name for each in calls if isinstance(each, Called)]


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("parallel", [True, False])
def test_required_is_calls_and_nothing_else(form: str, parallel: bool) -> None:
    given = structured_outputs(TOOL_FORMATS[form], TOOLS, "required", parallel)
    assert given is not None
    assert SamplingParams(structured_outputs=given).structured_outputs == given
    found = [checked(read(text, form)) for text in outputs(given, 40)]
    assert len(found) >= 25
    assert {name for names in found for name in names} == set(SCHEMAS)
    assert {len(names) > 1 for names in found} == ({True, False} if parallel else {False})
    assert min(map(len, found)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_a_named_function_is_called_once(form: str) -> None:
    given = structured_outputs(TOOL_FORMATS[form], TOOLS, "pick", True)
    assert given is not None
    found = [checked(read(text, form)) for text in outputs(given, 10)]
    assert found == [["pick"]] * 10


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("choice", ["required", "auto"])
def test_calls_come_behind_the_reasoning(form: str, choice: str) -> None:
    calls = structured_outputs(TOOL_FORMATS[form], TOOLS, choice, False)
    assert calls is not None
    given = behind_reasoning(calls, THINK)
    assert given["start_after"] == "</think>"
    before = f"{TOOL_FORMATS[form].begin}Hm.</think>"
    if choice == "auto":
        before += "\n\n" + ('{"name": ' if form == "llama3_json" else TOOL_FORMATS[form].begin)
    found = [read(text, form) for text in outputs(given, 20, before)]
    assert len(found) >= 12
    valid = SCHEMAS if choice == "required" else SCHEMAS | {"pick": {"type": "object"}}
    for thought, call, *rest in found:
        assert isinstance(thought, Thought)
        checked([call], valid)
        assert choice == "auto" or rest == []


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("parallel", [True, False])
def test_auto_is_free_text_in_which_a_call_obeys(form: str, parallel: bool) -> None:
    given = structured_outputs(TOOL_FORMATS[form], TOOLS, "auto", parallel)
    assert given is not None
    assert any(text and not isinstance(read(text, form)[0], Called) for text in outputs(given, 20))
    before = '{"name": "po' if form == "llama3_json" else f"So {TOOL_FORMATS[form].begin}"
    found = [read(text, form) for text in outputs(given, 40, before)]
    assert len(found) >= 20
    schemas = SCHEMAS | {"pick": {"type": "object"}}
    for said in found:
        calls: Told = [each for each in said if isinstance(each, Called)]
        assert checked(calls, schemas)


def write(form: str, arguments: str, name: str = "point") -> str:
    tools = TOOL_FORMATS[form]
    if tools.infixed:
        return f"{tools.begin}{name}{tools.infix}{arguments}"
    body = f'{{"name": "{name}", "{tools.member}": {arguments}}}'
    match form:
        case "mistral":
            return f"[TOOL_CALLS] [{body}]"
        case "hermes":
            return f"<tool_call>\n{body}\n</tool_call>"
    return body


@pytest.mark.slow
@pytest.mark.parametrize("form", FORMATS)
def test_auto_holds_only_strict_functions_to_their_schema(form: str) -> None:
    given = structured_outputs(TOOL_FORMATS[form], TOOLS, "auto", True)
    assert given is not None
    assert fits(given, "")
    assert fits(given, "Sure. { and [")
    assert fits(given, write(form, '{"x": 1}'))
    assert not fits(given, write(form, '{"x": 100}'))
    assert not fits(given, write(form, '{"x": 1}', "other"))
    assert fits(given, write(form, '{"kind": 3}', "pick"))
    assert not fits(given, write(form, "[]", "pick"))


@pytest.mark.slow
def test_the_answer_in_the_format_of_llama_begins_as_a_call_or_as_none() -> None:
    given = structured_outputs(TOOL_FORMATS["llama3_json"], TOOLS, "auto", False)
    assert given is not None
    assert fits(given, "\n<b>{</b>")
    for text in ('{"x": 1}', ' {"name"', "<|python_tag|>x", "    "):
        assert not fits(given, text)


@pytest.mark.parametrize("form", [*FORMATS, "pythonic"])
def test_auto_without_a_strict_function_is_free(form: str) -> None:
    assert structured_outputs(TOOL_FORMATS[form], [Function("pick", PICK)], "auto", True) is None


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [True, {}, {"description": "none"}, {"type": "object"}])
def test_no_schema_is_any_object(parameters: Any) -> None:
    tools = [Function("f", parameters, strict=True)]
    given = structured_outputs(TOOL_FORMATS["hermes"], tools, "required", False)
    assert given is not None
    assert fits(given, write("hermes", '{"a": [1]}', "f"))
    assert not fits(given, write("hermes", "[1]", "f"))


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (LOOSE, "tools: the parameters of 'f' at $.properties.a.not: the keyword not is not enforced"),
        ({"type": "string"}, "tools: the parameters of 'f' must have type \"object\", not 'string'"),
        (False, "tools: the parameters of 'f' at $: false accepts no value"),
        ([], "tools: the parameters of 'f' must be a schema"),
        ({"type": "object", "default": float("nan")}, "tools: the parameters of 'f' has nan at $.default"),
    ],
)
@pytest.mark.parametrize("choice", ["auto", "required", "f"])
def test_a_strict_schema_that_cannot_be_enforced_names_its_function(
    parameters: Any, words: str, choice: str
) -> None:
    tools = [Function("g"), Function("f", parameters, strict=True)]
    with pytest.raises(InvalidRequest) as refusal:
        structured_outputs(TOOL_FORMATS["hermes"], tools, choice, True)
    assert str(refusal.value).startswith(words)
    assert refusal.value.param == "tools"


def test_a_schema_that_is_too_deep_within_the_tag_names_its_function() -> None:
    schema: Any = {"type": "object"}
    for _ in range(30):
        schema = {"type": "object", "properties": {"a": schema}}
    with pytest.raises(InvalidRequest, match="tools: the parameters of 'f' is nested more than 64 deep"):
        structured_outputs(TOOL_FORMATS["hermes"], [Function("f", schema, strict=True)], "auto", True)


def test_strict_functions_are_bounded_together() -> None:
    schema = {"type": "object", "description": "x" * 400_000}
    tools = [Function(name, schema, strict=True) for name in "fgh"]
    with pytest.raises(InvalidRequest, match="the parameters of 'h' and those before take more than 1000000"):
        structured_outputs(TOOL_FORMATS["hermes"], tools, "auto", True)


@pytest.mark.parametrize(
    ("form", "tools", "choice", "words", "param"),
    [
        (
            "hermes",
            TOOLS,
            "other",
            "names 'other', which is not among tools: point, pick, loose",
            "tool_choice",
        ),
        ("hermes", [], "f", "names 'f', which is not among tools: there is none", "tool_choice"),
        ("hermes", [], "required", "is required, but there are no tools", "tool_choice"),
        ("pythonic", TOOLS, "required", "'required' is not possible with Python calls", "tool_choice"),
        ("pythonic", TOOLS, "point", "'point' is not possible with Python calls", "tool_choice"),
        (
            "pythonic",
            TOOLS,
            "auto",
            "tools has a strict function, but Python calls are not enforced",
            "tools",
        ),
    ],
)
def test_what_is_not_possible_is_refused(
    form: str, tools: list[Function], choice: str, words: str, param: str
) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        structured_outputs(TOOL_FORMATS[form], tools, choice, True)
    assert words in str(refusal.value)
    assert refusal.value.param == param
