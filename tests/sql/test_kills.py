"""A few of the kills of `kills.py`. `--full` runs all, and `SQL_KILLS` sets their number."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from tests.sql import kills
from tests.sql.databases import Database
from tests.support.servers import Server

pytestmark = pytest.mark.ci


@pytest.fixture
def runs(pytestconfig: pytest.Config) -> int:
    return int(os.environ.get("SQL_KILLS", "1000" if pytestconfig.option.full else "8"))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("body", [kills.relays, kills.accounts])
def test_kills(
    database: Database,
    newest: Server,
    runs: int,
    body: Callable[..., dict[str, int]],
    record_property: Any,
) -> None:
    for name, value in body(database, newest, runs).items():
        record_property(name, value)
