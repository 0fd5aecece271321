"""The pytest plugin of headrace: a private server, its URL, runs of your own worker on it, and time
that passes.

pytest finds it by itself where headrace is installed. It imports headrace only when a fixture is
used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from headrace._embedded.server import EmbeddedServer


@pytest.fixture(scope="session")
def headrace_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedServer]:
    """Start a private server for this test session, and stop it afterwards. Needs the extra
    `embedded`."""
    from headrace import testing

    with testing.private_server(tmp_path_factory.mktemp("headrace")) as server:
        yield server


@pytest.fixture
def headrace_url(headrace_server: EmbeddedServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the URL of the private server, emptied (FLUSHALL) for this test, in which HEADRACE_URL
    names it."""
    from headrace import testing

    url = testing.emptied(headrace_server)
    monkeypatch.setenv("HEADRACE_URL", url)
    return url


@pytest.fixture
def headrace_run(headrace_url: str) -> Callable[..., None]:
    """Return a function that runs a worker on the private server: `headrace_run(worker,
    until_empty=True)`.

    See `headrace.testing.run`, which it calls with the server's URL.
    """
    from headrace import testing

    def run(
        worker: Any, until_empty: bool = True, timeout: float = 30.0, skip_sleeps: bool = False
    ) -> None:
        testing.run(
            worker, headrace_url, until_empty=until_empty, timeout=timeout, skip_sleeps=skip_sleeps
        )

    return run


@pytest.fixture
def headrace_travel(headrace_url: str) -> Callable[[float], None]:
    """Return a function that lets seconds pass on the private server: `headrace_travel(3600)`.

    See `headrace.testing.travel`, which it calls with the server's URL.
    """
    from headrace import testing

    def travel(seconds: float) -> None:
        testing.travel(headrace_url, seconds)

    return travel
