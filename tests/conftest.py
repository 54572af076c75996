"""What all tests share."""

import os

import pytest
from hypothesis import settings

# `make test` draws the same examples every time, so that what fails fails again; `make soak` draws others.
settings.register_profile("test", derandomize=os.environ.get("ACTORLLM_SOAK") != "1", deadline=None)
settings.load_profile("test")


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Async tests run under both."""
    return str(request.param)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest tests first, so that no worker is left alone with one at the end."""
    items.sort(key=lambda item: item.get_closest_marker("longest") is None)
