"""One real server for all tests of a module."""

from collections.abc import Iterator

import pytest

from .peers import serving


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    """Where the HashModel is served."""
    with serving() as address:
        yield address
