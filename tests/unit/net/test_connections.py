"""Settings of our own connections."""

from __future__ import annotations

import pytest
import redis.utils

from headrace import AsyncQueue, Queue
from headrace._net.base.connections import own_settings

URL = "redis://localhost:1"


@pytest.mark.parametrize("kind", [Queue, AsyncQueue])
def test_a_connection_reads_no_version_from_disk(
    kind: type[Queue | AsyncQueue], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To read the version takes longer than the rest of a connection. redis-py reads it for each
    connection."""
    looks: list[None] = []
    look = redis.utils.get_lib_version
    monkeypatch.setattr(redis.utils, "get_lib_version", lambda: looks.append(None) or look())
    pool = kind("q", url=URL)._executor.pool
    made = [pool.connection_class(**pool.connection_kwargs) for _ in range(3)]
    assert made
    assert len(looks) <= 1


def test_what_a_client_says_of_itself_stays() -> None:
    assert "driver_info" not in own_settings({"lib_name": "ours"})
    assert own_settings({"driver_info": None})["driver_info"] is None
