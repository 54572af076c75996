"""Forms that hold behind reasoning, on a model of random weights."""

import json
import re
from typing import Any

import pytest

from actorllm.errors import InvalidRequest
from actorllm.parsing import REASONING_FORMATS
from actorllm.parsing.reasoned import behind_reasoning, perhaps_behind_reasoning

from .test_enforce import outputs

pytestmark = pytest.mark.slow

THINK = REASONING_FORMATS["think"]
TAG = {"type": "structural_tag", "format": {"type": "regex", "pattern": "[ab]{2,4}"}}
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "json": ({"json": {"enum": [1, 20]}}, "1|20"),
    "json text": ({"json": json.dumps({"enum": [1, 20]})}, "1|20"),
    "json_object": ({"json_object": True, "disable_any_whitespace": True}, r"\{.*\}"),
    "regex": ({"regex": "[a-d]{3,7}"}, "[a-d]{3,7}"),
    "grammar": ({"grammar": 'root ::= "a" root "b" | "ab"'}, "a+b+"),
    "choice": ({"choice": ["yes", "no"]}, "yes|no"),
    "structural_tag": ({"structural_tag": TAG}, "[ab]{2,4}"),
    "structural_tag text": ({"structural_tag": json.dumps(TAG)}, "[ab]{2,4}"),
}


@pytest.mark.parametrize("case", FORMS)
@pytest.mark.parametrize("before", ["", "<think>", "<think>so</think>"])
def test_what_comes_at_once_or_behind_reasoning_has_the_form(case: str, before: str) -> None:
    form, pattern = FORMS[case]
    found = list(outputs(perhaps_behind_reasoning(form, THINK), 8, before=before, limit=300))
    if before != "<think>":
        assert found
    for text in found:
        assert text.startswith(before)
        answer = text.partition("</think>")[2] if before else text
        assert re.fullmatch(rf"[ \n]{{0,4}}({pattern})", answer, re.DOTALL), text


def test_reasoning_that_has_begun_is_free_to_its_end() -> None:
    form = behind_reasoning({"regex": "[ab]{3}"}, THINK)
    for text in outputs(form, 8, before="so</think>", limit=40):
        assert re.fullmatch("so</think>[ \n]{0,4}[ab]{3}", text)


def test_who_says_where_the_form_begins_is_believed() -> None:
    given = {"regex": "a", "start_after": "x"}
    assert perhaps_behind_reasoning(given, THINK) == given
    assert behind_reasoning(given, THINK) == given


def test_what_is_no_form_is_left_to_whom_it_concerns() -> None:
    for given in ({}, {"regex": "a", "json": {}}, {"colour": "red"}):
        assert perhaps_behind_reasoning(given, THINK) == given


@pytest.mark.parametrize(
    ("form", "param", "message"),
    [
        ({"json": "{"}, "structured_outputs.json", "is not JSON"),
        ({"structural_tag": "{"}, "structured_outputs.structural_tag", "is not JSON"),
        (
            {"structural_tag": {"structures": [], "triggers": []}},
            "structured_outputs.structural_tag",
            "in its form with `format`",
        ),
    ],
)
def test_what_cannot_stand_behind_reasoning_is_refused(form: Any, param: str, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message) as caught:
        perhaps_behind_reasoning(form, THINK)
    assert caught.value.param == param
