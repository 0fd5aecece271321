"""Databases, which are a file of SQLite and a PostgreSQL server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sql.databases import Database, emptied, postgresql


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """The URL of a PostgreSQL server, for all tests of this process."""
    with postgresql() as url:
        yield url


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Database:
    """A database of each kind, with the tables."""
    if request.param == "sqlite":
        return emptied(
            Database("sqlite", f"sqlite:///{tmp_path}/db", f"sqlite+aiosqlite:///{tmp_path}/db")
        )
    return emptied(Database("postgresql", *[request.getfixturevalue("postgresql_url")] * 2))
