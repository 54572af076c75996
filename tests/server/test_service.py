"""For whom a request is served, how soon, and by what name."""

from typing import Any

import pytest

from actorllm import Engine
from actorllm.server.app import create_app
from actorllm.server.settings import ServerSettings

from .build import CHAT, COMPLETIONS, CONFIG, HELLO, Held, client_of, error, events, served

pytestmark = pytest.mark.anyio

LONG: dict[str, Any] = {"prompt": "abc", "max_tokens": 400, "ignore_eos": True, "temperature": 0}


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("timeout", [{"json": {"timeout": 1.0}}, {"headers": {"x-request-timeout": "1.0"}}])
async def test_a_timeout_is_an_error_and_not_an_end(timeout: dict[str, Any], stream: bool) -> None:
    held = Held(step=4)
    body = LONG | timeout.get("json", {}) | {"stream": stream}
    async with Engine(CONFIG, parts=held.parts) as engine, client_of(create_app(engine)) as client:
        try:
            response = await client.post(COMPLETIONS, json=body, headers=timeout.get("headers", {}))
        finally:
            held.gate.set()
        await engine.check()
    found = events(response) if stream else [response.json()]
    assert found.pop()["error"] == {
        "message": "the request ran into its timeout; its answer is not complete",
        "type": "GatewayTimeoutError",
        "param": None,
        "code": 504,
    }
    assert found or not stream
    assert all(choice["finish_reason"] is None for event in found for choice in event["choices"])


async def test_the_client_names_its_request() -> None:
    async with served() as (_, client):
        body = {"messages": HELLO, "max_tokens": 1, "request_id": "mine-7"}
        assert (await client.post(CHAT, json=body)).json()["id"] == "chatcmpl-mine-7"
        body = {"prompt": "a", "max_tokens": 1, "request_id": "mine-7"}
        assert (await client.post(COMPLETIONS, json=body)).json()["id"] == "cmpl-mine-7"


async def test_unknown_fields_are_ignored_where_the_server_is_told_so() -> None:
    body = {"messages": [{**HELLO[0], "colour": 1}], "max_tokens": 1, "temprature": 0}
    async with served(settings=ServerSettings(ignore_unknown_fields=True)) as (_, client):
        assert (await client.post(CHAT, json=body)).status_code == 200
        refused = await client.post(CHAT, json=body | {"audio": {}})
    assert error(refused)["param"] == "audio"
    async with served() as (_, client):
        assert error(await client.post(CHAT, json=body))["param"] == "temprature"


async def test_tenants_share_the_engine_fairly() -> None:
    settings = ServerSettings(api_keys=("one=k1", "two=k2"))
    tenants = []
    async with served(settings=settings, policy="fair") as (engine, client):
        ask = engine.generate

        def noted(*args: Any, **service: Any) -> Any:
            tenants.append(service["tenant"])
            return ask(*args, **service)

        engine.generate = noted  # type: ignore[method-assign]
        for key in ("k1", "k2"):
            headers = {"authorization": f"Bearer {key}"}
            response = await client.post(COMPLETIONS, json={"prompt": "a", "max_tokens": 1}, headers=headers)
            assert response.status_code == 200
    assert tenants == ["one", "two"]
