"""Servers that may be broken, and proxies before them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.proxy import Proxy
from tests.support.servers import Binary, Server


@pytest.fixture
def own(binary: Binary) -> Iterator[Server]:
    with Server(binary) as server:
        yield server


@pytest.fixture
def proxy(own: Server) -> Iterator[Proxy]:
    """Start a proxy in front of the test's own server."""
    with Proxy(own.path) as proxy:
        yield proxy
