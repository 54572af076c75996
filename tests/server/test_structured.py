"""The form of an answer: models with random weights write what the grammar says, streaming or not."""

import json
import re
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import BaseModel, Field

from .build import CHAT, COMPLETIONS, HELLO, events, served
from .joined import join_chat

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


class Pet(BaseModel):
    """A little of everything."""

    kind: Literal["cat", "dog"]
    name: str = Field(pattern="^[A-Z][a-z]{0,7}$")
    food: str = Field(min_length=1, max_length=4)
    age: int = Field(ge=0, le=20)
    is_tame: bool
    toys: list[Literal["ball", "bone"]] = Field(max_length=2)


SCHEMA = {"name": "pet", "description": "a pet", "strict": True, "schema": Pet.model_json_schema()}
FORM = {"type": "json_schema", "json_schema": SCHEMA}


async def test_a_pydantic_model_is_what_comes(small: Path) -> None:
    request = {"messages": HELLO, "max_tokens": 300, "temperature": 1.0, "n": 2, "seed": 1}
    async with served(model=str(small)) as (_, client):
        body = (await client.post(CHAT, json={**request, "response_format": FORM})).json()
        found = events(await client.post(CHAT, json={**request, "response_format": FORM, "stream": True}))
        same = {"structured_outputs": {"json": SCHEMA["schema"]}}
        again = (await client.post(CHAT, json={**request, **same})).json()
    assert len(body["choices"]) == 2
    for choice in body["choices"]:
        assert choice["finish_reason"] == "stop"
        Pet.model_validate_json(choice["message"]["content"])
    assert join_chat(found[:-1]) == body["choices"] == again["choices"]


@pytest.mark.parametrize(
    ("form", "pattern"),
    [
        ({"choice": ["yes", "no", "caf\u00e9"]}, "yes|no|caf\u00e9"),
        ({"regex": r"[a-f]{2,4}-\d{3}"}, r"[a-f]{2,4}-\d{3}"),
        ({"grammar": 'root ::= "<" [0-9] [0-9]? ">"'}, r"<\d\d?>"),
    ],
)
async def test_every_kind_of_form(small: Path, form: dict[str, Any], pattern: str) -> None:
    request = {"prompt": "abc", "max_tokens": 40, "temperature": 1.0, "n": 4, "seed": 2}
    async with served(model=str(small)) as (_, client):
        body = (await client.post(COMPLETIONS, json={**request, "structured_outputs": form})).json()
    for choice in body["choices"]:
        assert choice["finish_reason"] == "stop"
        assert re.fullmatch(pattern, choice["text"])


@pytest.mark.parametrize("compact", [False, True])
async def test_a_json_object(small: Path, compact: bool) -> None:
    ends = {"logit_bias": {str(ord("}")): 100}}
    forms: dict[str, Any] = {"response_format": {"type": "json_object"}}
    if compact:
        forms = {"structured_outputs": {"json_object": True, "disable_any_whitespace": True}}
    async with served(model=str(small)) as (_, client):
        response = await client.post(CHAT, json={"messages": HELLO, "max_tokens": 200, **ends, **forms})
    (choice,) = response.json()["choices"]
    assert choice["finish_reason"] == "stop"
    assert isinstance(json.loads(choice["message"]["content"]), dict)


async def test_a_structural_tag(small: Path) -> None:
    tag = {"type": "tag", "begin": "<n>", "content": {"type": "regex", "pattern": "[0-9]{2}"}, "end": "</n>"}
    form = {"type": "structural_tag", "format": tag}
    async with served(model=str(small)) as (_, client):
        response = await client.post(
            CHAT, json={"messages": HELLO, "max_tokens": 40, "response_format": form}
        )
    (choice,) = response.json()["choices"]
    assert re.fullmatch("<n>[0-9]{2}</n>", choice["message"]["content"])


async def test_text_is_no_form(small: Path) -> None:
    request = {"messages": HELLO, "max_tokens": 20, "temperature": 0}
    async with served(model=str(small)) as (_, client):
        plain = (await client.post(CHAT, json=request)).json()
        text = (await client.post(CHAT, json={**request, "response_format": {"type": "text"}})).json()
    assert text["choices"] == plain["choices"]


@pytest.mark.parametrize("stream", [False, True])
async def test_what_has_no_grammar_is_a_bad_request(small: Path, stream: bool) -> None:
    wrong = {"type": "json_schema", "json_schema": {"schema": {"type": "sting"}}}
    async with served(model=str(small)) as (_, client):
        request = {"messages": HELLO, "stream": stream, "response_format": wrong}
        response = await client.post(CHAT, json=request)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "response_format.json_schema.schema"
    assert "sting" in error["message"]
    assert error["message"].startswith("response_format.json_schema.schema")


@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_the_real_model_writes_a_pet() -> None:
    asked = [{"role": "user", "content": "Describe a pet as JSON."}]
    request = {"messages": asked, "max_tokens": 100, "temperature": 0, "logprobs": True, "top_logprobs": 2}
    async with served(model="smollm2-135m") as (_, client):
        response = await client.post(CHAT, json={**request, "response_format": FORM})
        (choice,) = response.json()["choices"]
        found = events(await client.post(CHAT, json={**request, "response_format": FORM, "stream": True}))
    assert choice["finish_reason"] == "stop"
    Pet.model_validate_json(choice["message"]["content"])
    content = choice["logprobs"]["content"]
    shown = bytes(byte for entry in content[:-1] for byte in entry["bytes"])
    assert shown.decode() == choice["message"]["content"]
    assert join_chat(found[:-1]) == [choice]
