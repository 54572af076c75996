"""No test of an engine may block the event loop."""

from collections.abc import Iterator

import pytest
from blockbuster import blockbuster_ctx


@pytest.fixture(autouse=True)
def _never_block() -> Iterator[None]:
    """A blocking call of the package in an asyncio event loop raises, and so fails the test."""
    with blockbuster_ctx("actorllm"):
        yield
