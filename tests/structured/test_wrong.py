"""Whatever is wrong with a spec is said as an InvalidRequest of its field, never as another error."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from actorllm.errors import InvalidRequest
from actorllm.structured import spec
from actorllm.structured.keywords import BY_TYPE, KNOWN
from actorllm.structured.source import source
from actorllm.structured.tags import _FIELDS

REFERENCES = ["#", "#/$defs/a", "#/$defs/b", "#/definitions/a"]
WORDS = [*BY_TYPE, *REFERENCES, "a", "b", "^a+$", "(a", "date", ""]
NUMBERS = [0, 1, 2, 7, -3, 1.0, 2.5, -1e30, 1e30, 1e308, 10**99, 10**200, 100_000, 10**6]

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(NUMBERS),
    st.integers(),
    st.sampled_from(WORDS),
    st.text(max_size=5),
)


def _values(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Lists and objects; most of the objects are schemas in which most of the keywords have wrong values."""
    keys = st.sampled_from([*sorted(KNOWN), "a", "b", "x-a"])
    typed = st.fixed_dictionaries({"type": st.sampled_from(sorted(BY_TYPE)) | inner})
    members = st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2)
    parts = st.dictionaries(keys, inner | members | st.lists(inner, max_size=3), max_size=4)
    return st.one_of(
        st.lists(inner, max_size=3),
        parts,
        st.tuples(typed, parts).map(lambda both: both[0] | both[1]),
        st.sampled_from(REFERENCES).map(lambda reference: {"$ref": reference}),
        st.lists(inner, max_size=3).map(lambda branches: {"oneOf": branches}),
    )


values = st.recursive(scalars, _values, max_leaves=12)
wrong = st.dictionaries(st.sampled_from(sorted(KNOWN)), values, min_size=1, max_size=2)
branches = st.lists(
    st.sampled_from(REFERENCES).map(lambda reference: {"$ref": reference}) | wrong, min_size=2
)
bounds = st.dictionaries(st.sampled_from(sorted(BY_TYPE["number"])), st.sampled_from(NUMBERS))
numeric = st.tuples(st.sampled_from(["integer", "number"]), bounds).map(
    lambda both: {"type": both[0], **both[1]}
)
schemas = st.tuples(
    st.one_of(_values(values), branches.map(lambda found: {"oneOf": found}), numeric),
    st.dictionaries(st.sampled_from(["a", "b"]), wrong | numeric),
).map(lambda both: both[0] | {"$defs": both[1]} if isinstance(both[0], dict) else both[0])
fields = sorted({field for names in _FIELDS.values() for field in names})
formats = st.recursive(
    scalars | st.just({"type": "json_schema", "json_schema": {}}),
    lambda inner: st.tuples(
        st.fixed_dictionaries({"type": st.sampled_from(sorted(_FIELDS)) | inner}),
        st.dictionaries(st.sampled_from(fields), inner | st.lists(inner, max_size=2), max_size=4),
    ).map(lambda both: both[0] | both[1]),
    max_leaves=8,
)


def is_text_or_refused(structured_outputs: Any) -> None:
    refusal: InvalidRequest | None = None
    try:
        kind, text = source(json.loads(spec(structured_outputs)))
        assert kind in ("ebnf", "tag")
        assert text
    except InvalidRequest as error:
        refusal = error
    if refusal is not None:
        assert "cannot be read" not in str(refusal), refusal.__cause__
        assert str(refusal.param).startswith("structured_outputs")


@pytest.mark.slow
@settings(max_examples=1000, derandomize=True, database=None, deadline=None)
@given(schemas)
@example({"type": "array", "prefixItems": [True], "maxItems": 1.0})
def test_a_schema_is_read_or_refused(schema: Any) -> None:
    is_text_or_refused({"json": schema})


@pytest.mark.slow
@settings(max_examples=300, derandomize=True, database=None, deadline=None)
@given(
    formats
    | st.fixed_dictionaries({"format": formats})
    | st.dictionaries(st.sampled_from(["structures", "triggers"]), formats | st.lists(formats))
)
def test_a_structural_tag_is_read_or_refused(tag: Any) -> None:
    is_text_or_refused({"structural_tag": tag})


@pytest.mark.slow
@settings(max_examples=200, derandomize=True, database=None, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(["json", "regex", "choice", "grammar", "json_object", "start_after"]), values
    )
)
def test_a_spec_is_read_or_refused(given: Any) -> None:
    is_text_or_refused(given)


def test_a_fault_of_ours_is_an_invalid_request_of_the_field() -> None:
    with pytest.raises(
        InvalidRequest, match=r"structured_outputs.choice cannot be read: TypeError: "
    ) as refusal:
        source({"choice": 5, "start_after": "x"})
    assert refusal.value.param == "structured_outputs.choice"
    assert isinstance(refusal.value.__cause__, TypeError)
