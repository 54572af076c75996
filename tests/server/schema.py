"""The server's schema for schemathesis, and what sends its cases to a server in this process."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import httpx
import schemathesis
from anyio.from_thread import BlockingPortal, start_blocking_portal
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.config import SchemathesisConfig
from schemathesis.specs.openapi import checks
from schemathesis.specs.openapi.schemas import OpenApiSchema

from actorllm import Engine, Parts
from actorllm.server.app import create_app
from actorllm.server.settings import ServerSettings

from .build import CHAT, CONFIG, served
from .responses_joined import RESPONSES

Case = schemathesis.Case[Any]

SOAK = os.environ.get("ACTORLLM_SOAK") == "1"

EXAMPLES = 200 if SOAK else 25
"""Of an operation."""

HANGS = 20.0
"""Seconds after which a request counts as one that nobody answers."""

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
    checks.unsupported_method,
    checks.allow_header_conformance,
    checks.negative_data_rejection,
]

examples = settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    deadline=60_000,  # of milliseconds: a hang
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
"""The same ones in every run."""


def loaded(*phases: str) -> OpenApiSchema:
    """The server's document, for cases of these phases of schemathesis. 504 is for who wants to wait 0 s."""
    config = SchemathesisConfig.from_dict(
        {
            "seed": 0,
            "generation": {"deterministic": True, "database": "none"},
            "phases": {name: {"enabled": name in phases} for name in ("examples", "coverage", "fuzzing")},
            "checks": {
                "not_a_server_error": {"expected-statuses": ["2xx", "4xx", "504"]},
                "negative_data_rejection": {"expected-statuses": ["400", "404", "405", "504"]},
            },
        }
    )
    return schemathesis.openapi.from_dict(create_app(Engine(CONFIG)).openapi(), config=config)


class Server:
    """A server on an event loop of its own."""

    def __init__(self, portal: BlockingPortal, client: httpx.AsyncClient) -> None:
        self._portal = portal
        self._client = client

    def send(self, method: str, path: str, **told: Any) -> httpx.Response:
        """The response to a request. Fails when nothing comes."""

        async def request() -> httpx.Response:
            with anyio.fail_after(HANGS):
                return await self._client.request(method, path, **told)

        return self._portal.call(request)

    def check(self, case: Case) -> None:
        """Send a case, and check the response against the document."""
        told = case.as_transport_kwargs(base_url="http://test")
        del told["cookies"]
        response = self.send(told.pop("method"), told.pop("url"), content=told.pop("data", None), **told)
        case.validate_response(response, checks=CHECKS)

    def check_answerable(self, case: Case) -> None:
        """The same with a case that fits the document, made so that it can be answered."""
        if isinstance(case.body, dict):
            case.body = answerable(case.path, case.body)
        if "model" in case.path_parameters:
            case.path_parameters = {"model": "hash"}
        if "response_id" in case.path_parameters:
            case.path_parameters = {"response_id": self._stored()}
        self.check(case)

    def _stored(self) -> str:
        found = self.send("POST", "/v1/responses", json={"input": "a", "max_output_tokens": 1})
        return str(found.json()["id"])


@contextmanager
def running(
    backend: str, parts: Parts | None = None, settings: ServerSettings | None = None
) -> Iterator[Server]:
    """A server, under asyncio or trio. Nothing may be left in its engine."""
    with (
        start_blocking_portal(backend) as portal,
        portal.wrap_async_context_manager(served(parts, settings)) as (_, client),
    ):
        yield Server(portal, client)


def is_positive(case: Case) -> bool:
    """Whether it fits the document."""
    return case.meta is not None and case.meta.generation.mode.is_positive


def answerable(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The same body without what this model, this server or another field can stand against."""
    found = {name: value for name, value in _whole(body).items() if name not in _REFUSED}
    if not found.get("stream"):
        found = {
            name: value for name, value in found.items() if name not in ("stream_options", "stream_interval")
        }
    if found.get("structured_outputs") is not None:
        found.pop("response_format", None)
    for name in ("max_tokens", "n"):
        if found.get(name) is not None:
            found[name] = min(found[name], FEW)
    for name in ("prompt", "tokens"):
        if name in found:
            found[name] = _known(found[name])
    return found | dict.fromkeys(_LIMITS.get(path, ()), FEW)


FEW = 4
_LIMITS = {CHAT: ("max_tokens", "max_completion_tokens"), RESPONSES: ("max_output_tokens",)}
"""What bounds an answer that may otherwise take the rest of the context."""


_REFUSED = frozenset(
    {
        "model",
        "previous_response_id",
        "best_of",
        "min_tokens",
        "timeout",
        "queue_timeout",
        "ttft_timeout",
        "allowed_token_ids",
        "logprob_token_ids",
        "reasoning_effort",
        "truncate_prompt_tokens",
        "thinking_token_budget",
        "include",
        "top_logprobs",
        "thinking",
        "tools",
        "tool_choice",
    }
)


def _known(tokens: Any) -> Any:
    """The same with tokens that the HashModel has."""
    if isinstance(tokens, list):
        return [_known(each) for each in tokens]
    return tokens % 256 if isinstance(tokens, int) else tokens or "a"


def _whole(value: Any) -> Any:
    """The same JSON with 1 for 1.0: for JSON Schema it is the same integer, but not for a strict server."""
    match value:
        case dict():
            return {name: _whole(each) for name, each in value.items()}
        case list():
            return [_whole(each) for each in value]
        case float() if value.is_integer():
            return int(value)
    return value
