"""The choice of the primary when Sentinels disagree, and the end of the search."""

from __future__ import annotations

from typing import Any

import pytest
import redis
import redis.asyncio
from redis.sentinel import MasterNotFoundError

from headrace._net.aio.executor import AsyncExecutor
from headrace._net.base import sentinel
from headrace._net.base.sentinel import Manager, Place, Report, Watch
from headrace._net.sync.executor import Executor
from tests.support.awaiting import until
from tests.support.facts import each

SENTINELS: list[Place] = [("s", 1), ("s", 2), ("s", 3)]
OLD, NEW = Report(4, ("a", 1)), Report(5, ("b", 1))


def told(*reports: tuple[int, Report | None]) -> Watch:
    """Return a watch that was told these, each by a Sentinel of that number."""
    watch = Watch("primary", dict.fromkeys(SENTINELS), 0, None)
    for number, report in reports:
        watch._take(SENTINELS[number], report)
    return watch


def test_the_latest_configuration_counts() -> None:
    assert told((0, OLD), (1, OLD)).primary == OLD.primary
    assert told((0, OLD), (1, NEW), (2, OLD)).primary == NEW.primary


def test_a_sentinel_that_was_cut_off() -> None:
    """The other Sentinels are out of reach. Its older answer counts only if most Sentinels agree,
    as after a reset."""
    watch = told((0, NEW), (1, NEW), (0, None), (1, None), (2, OLD))
    assert watch.primary == NEW.primary
    watch._take(SENTINELS[0], OLD)
    assert watch.primary == OLD.primary


def test_an_answer_of_a_former_primary() -> None:
    """The answer is ignored. The connection is checked before it is used again."""
    watch = told((0, OLD))
    connections = Executor(client=client(redis)).connections
    connections._watch = watch
    connection = connections._newest()[0]
    connection.host = "a"
    connection.port = 1
    connections.check(connection)
    connections.give(connection)
    watch._take(SENTINELS[0], NEW)
    with pytest.raises(redis.ConnectionError, match="a:1 is no longer the primary"):
        connections.check(connection)
    assert connections._newest() == (connection, True)


def client(module: Any, **options: Any) -> Any:
    return module.sentinel.Sentinel([("localhost", 1)], socket_timeout=1).master_for(
        "primary", **options
    )


@each("colour", [Executor, AsyncExecutor])
def test_settings_of_a_client(colour: Any) -> None:
    """The settings include TLS. All executors share a watch."""
    module: Any = redis if colour is Executor else redis.asyncio
    pool = colour(client=client(module, ssl=True, ssl_check_hostname=False, db=3)).pool
    made = pool.make_connection()
    assert isinstance(made, module.SSLConnection)
    assert (
        made.db,
        made.check_hostname if module is redis else made.ssl_context.check_hostname,
    ) == (3, False)
    assert isinstance(pool.sentinel_manager, Manager)
    assert colour(client=client(module)).pool.sentinel_manager.watch is pool.sentinel_manager.watch


def test_nothing_is_watched_without_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sentinel, "FIND_WITHIN_S", 0.01)
    monkeypatch.setattr(sentinel, "LINGER_S", 0.0)
    watch = Executor(client=client(redis)).pool.sentinel_manager.watch
    with pytest.raises(
        MasterNotFoundError, match="no Sentinel of localhost:1 names the primary of 'primary'"
    ):
        watch.find()
    until(lambda: not watch._threads, "the end of its threads")
