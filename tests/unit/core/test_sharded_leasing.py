"""Leasing from shards in turn, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from headrace._core.queue.leasing import Peer
from headrace._core.shards.leasing import ShardedPeer
from headrace._core.shards.map import ShardMap
from headrace._core.shards.transfer import Targets
from headrace._model.settings import QueueSettings
from headrace._protocol.keys import Keys
from headrace._protocol.queue_ops import Ops

SHARDS = 3


def test_calls_at_once_ask_every_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins with another shard, and none passes one over because the others begin meanwhile."""

    def lease(self: Peer, *_: Any) -> Any:
        yield self.ops.keys.shard
        return []

    monkeypatch.setattr(Peer, "lease", lease)
    peer = ShardedPeer(ShardMap(Ops(Keys.of("q"), QueueSettings(shards=SHARDS))), Targets())
    asked: list[list[Any]] = []
    calls: list[Any] = []
    for _ in range(SHARDS):  # a call begins at each step of those before
        calls.append(peer._ask_all(1, None, False))
        asked.append([])
        for call, shards in zip(calls, asked, strict=True):
            shards.append(next(call))
    for call, shards in zip(calls, asked, strict=True):
        shards.extend(call)
    assert [len(set(shards)) for shards in asked] == [len(shards) for shards in asked] == [SHARDS] * SHARDS
    assert len({shards[0] for shards in asked}) == SHARDS
