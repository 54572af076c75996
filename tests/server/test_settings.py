"""ServerSettings: what they take, and that a wrong field is named, but never a key."""

from typing import Any

import pytest

from actorllm import ConfigError
from actorllm.server.settings import ServerSettings


def test_the_defaults_are_documented_and_work() -> None:
    settings = ServerSettings()
    documented = {line.split()[0] for line in (ServerSettings.__doc__ or "").splitlines() if line.split()}
    assert ServerSettings.__dataclass_fields__.keys() <= documented
    assert settings.keys == ()
    assert (settings.max_body_bytes, settings.grace) == (4_194_304, 5.0)


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        (["alone"], [("", "alone")]),
        (["red=one", "red=two", "blue=one"], [("red", "one"), ("red", "two"), ("blue", "one")]),
        (["=with=sign=="], [("", "with=sign==")]),
        (["red=with=sign"], [("red", "with=sign")]),
        ({"red": "with=sign", "": "alone"}, [("red", "with=sign"), ("", "alone")]),
    ],
)
def test_keys_are_read_with_their_tenants(given: Any, keys: list[tuple[str, str]]) -> None:
    assert list(ServerSettings(api_keys=given).keys) == keys


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("sk-secret", "api_keys must be a mapping or a list, not a str"),
        ([7], "api_keys must be texts, not a int"),
        ([""], "api_keys: a key is empty"),
        (["red="], "one has nothing behind its '='"),
        (["secret=="], "one has nothing behind its '='; write a key with a '=' in it as =key"),
        ({"red": ""}, "the key of tenant 'red' is empty"),
        (["red=sk secret"], "the key of tenant 'red' must be at most 1000 characters of printable ASCII"),
        (["sk-secret\xe9"], "a key must be at most 1000 characters of printable ASCII"),
        (["s" * 1001], "a key must be at most 1000"),
        (["re\nd=secret"], "a tenant of api_keys must be at most 1000 printable characters"),
        ({"red": 5}, "the key of tenant 'red' is empty"),
    ],
)
def test_a_bad_key_is_refused_and_not_told(given: Any, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        ServerSettings(api_keys=given)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


def test_keys_are_not_shown() -> None:
    assert "sk-secret" not in repr(ServerSettings(api_keys=["red=sk-secret"]))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metrics_need_key", 1),
        ("allowed_origins", "https://a.example"),
        ("allowed_origins", ("https://a.example/",)),
        ("allowed_origins", ("a.example",)),
        ("allowed_origins", ("https://A.example",)),
        ("max_body_bytes", 0),
        ("max_body_bytes", 1.5),
        ("request_timeout", 0),
        ("request_timeout", "5"),
        ("unread_timeout", 0),
        ("unread_timeout", float("nan")),
        ("keep_alive_interval", -1),
        ("ignore_unknown_fields", "yes"),
        ("tool_parser", ""),
        ("reasoning_parser", 5),
        ("max_responses", True),
        ("max_step_seconds", float("inf")),
        ("max_stall_seconds", None),
        ("grace", -0.1),
    ],
)
def test_a_field_that_cannot_work_is_named(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"^{field} must be "):
        ServerSettings(**{field: value})


def test_none_is_no_parser_and_a_grace_may_be_nothing() -> None:
    settings = ServerSettings(tool_parser="none", reasoning_parser=None, grace=0, allowed_origins=("*",))
    assert (settings.tool_parser, settings.reasoning_parser) == (None, None)
