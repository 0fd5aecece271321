"""The ordinary way of each verb stays short. The files and the function calls on it are counted."""

from __future__ import annotations

import asyncio

from bench.walk import async_walks, sync_walks
from tests.support.servers import Server

LIMITS = {  # files, calls by `Queue`, calls by `AsyncQueue`
    "enqueue": (14, 40, 50),
    "enqueue, header": (14, 40, 50),
    "enqueue, key": (14, 40, 50),
    "enqueue, payload": (14, 35, 45),
    "lease": (20, 112, 131),
    "complete": (20, 75, 100),
    "recorded step": (23, 100, 117),
    "fair lease": (20, 109, 128),
}


def test_no_verb_takes_a_longer_way(newest: Server) -> None:
    walks = zip(
        sync_walks(newest.url).items(), asyncio.run(async_walks(newest.url)).values(), strict=True
    )
    took = {
        name: (max(one.files, other.files), len(one.calls), len(other.calls))
        for (name, one), other in walks
    }
    assert took.keys() == LIMITS.keys()
    too_long = {name: way for name, way in took.items() if any(map(int.__gt__, way, LIMITS[name]))}
    assert not too_long, f"{too_long}; to see a way: python bench/walk.py --show '<verb>'"
