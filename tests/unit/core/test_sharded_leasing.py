"""Leasing from shards in turn, step by step."""

from __future__ import annotations

from typing import Any

import pytest

from headrace._core.effects import Now, Send
from headrace._core.queue.leasing import DirectLeaser
from headrace._core.shards.leasing import SOON_S, ShardedLeaser
from headrace._core.shards.map import ShardMap
from headrace._core.shards.transfer import Targets
from headrace._model.settings import QueueSettings
from headrace._protocol.keys import Keys
from headrace._protocol.queue_ops import Ops

SHARDS = 3
WITHIN_S = 2.0


def test_calls_at_once_ask_every_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each call begins with another shard, and skips none because other calls begin meanwhile."""

    def lease(self: DirectLeaser, *_: Any) -> Any:
        yield self.ops.keys.shard
        return []

    monkeypatch.setattr(DirectLeaser, "lease", lease)
    leaser = ShardedLeaser(ShardMap(Ops(Keys.of("q"), QueueSettings(shards=SHARDS))), Targets())
    asked: list[list[Any]] = []
    calls: list[Any] = []
    for _ in range(SHARDS):  # a call begins at each step of those before
        calls.append(leaser._ask_all(1, None, False, 0.0))
        asked.append([])
        for call, shards in zip(calls, asked, strict=True):
            shards.append(next(call))
    for call, shards in zip(calls, asked, strict=True):
        shards.extend(call)
    assert (
        [len(set(shards)) for shards in asked]
        == [len(shards) for shards in asked]
        == [SHARDS] * SHARDS
    )
    assert len({shards[0] for shards in asked}) == SHARDS


class Asked:
    """Shards that answer from a list. `asked` has the calls to each, with their timeouts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *answers: Any) -> None:
        def lease(leaser: DirectLeaser, *_: Any) -> Any:
            return (yield Send((leaser.ops.shard.number,)))  # type: ignore[arg-type, attr-defined]

        monkeypatch.setattr(DirectLeaser, "lease", lease)
        self.answers = dict(enumerate(map(list, answers)))
        self.asked: list[tuple[int, float | None]] = []
        self.silent: set[int] = set()
        settings = QueueSettings(shards=len(answers), timeout=WITHIN_S)
        known = ShardMap(
            Ops(Keys.of("q"), settings), lambda keys: keys.shard.number not in self.silent
        )  # type: ignore[union-attr]
        self.leaser = ShardedLeaser(known, Targets())
        self.leaser._turn = -1  # the first is asked first

    def lease(self, limit: int = 1) -> Any:
        """Take one turn."""
        self.asked.clear()
        call, now = self.leaser._ask_all(limit, None, False, 0.0), 0.0
        try:
            effect = next(call)
            while True:
                if isinstance(effect, Now):
                    effect = call.send(now)
                    continue
                (number,), within = effect.ops, effect.within  # type: ignore[union-attr]
                self.asked.append((number, within))  # type: ignore[arg-type]
                answer = self.answers[number].pop(0)  # type: ignore[index]
                if isinstance(answer, Exception):
                    now += within or 0.0
                    effect = call.throw(answer)
                else:
                    effect = call.send(answer)
        except StopIteration as done:
            self.leaser._turn = -1
            return done.value


def failed(outcome: str) -> Exception:
    """Return the error of a call that was tried for its whole time."""
    error = ConnectionError(outcome)
    error.outcome = outcome  # type: ignore[attr-defined]
    return error


def test_a_shard_that_does_not_answer_keeps_none_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, [failed("unknown")], ["a"], ["b"])
    assert asked.lease(2) == ["a", "b"]
    assert asked.asked == [(0, SOON_S), (1, SOON_S), (2, SOON_S)]


def test_it_has_its_time_where_there_is_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow shard may have the only job."""
    asked = Asked(monkeypatch, [failed("unknown"), "a"], [[]], [[]])
    assert asked.lease() == ["a"]
    assert asked.asked[-1] == (0, WITHIN_S - SOON_S)


@pytest.mark.parametrize("outcome", ["unknown", "not sent"])
def test_it_is_passed_over_in_the_end(monkeypatch: pytest.MonkeyPatch, outcome: str) -> None:
    asked = Asked(monkeypatch, [failed(outcome), failed(outcome)], [[], ["b"]], [[]])
    assert asked.lease() == []
    asked.silent.add(0)
    assert asked.lease() == ["b"]
    assert asked.asked == [(1, SOON_S)]


def test_shards_of_its_node_are_not_asked_then(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, [failed("unknown"), [], failed("unknown")], [["b"]], [[]])
    asked.silent = {0, 1, 2}  # where all are so, the first is asked all the same
    assert asked.lease() == ["b"]
    assert asked.asked == [(0, SOON_S), (0, WITHIN_S - SOON_S), (1, WITHIN_S - SOON_S)]


def test_no_answer_at_all_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, *([failed("unknown")] * 2 for _ in range(SHARDS)))
    with pytest.raises(ConnectionError):
        asked.lease()


def test_a_refusal_is_waited_out_and_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused shard is tried again for as long as a call may take, and only if no other shard has
    a job."""
    asked = Asked(monkeypatch, [failed("refused")], [["a"]], [[]])
    assert asked.lease() == ["a"]
    asked = Asked(monkeypatch, [failed("refused"), failed("refused")], [[]], [[]])
    with pytest.raises(ConnectionError, match="refused"):
        asked.lease()
    assert asked.asked[-1] == (0, None)


def test_an_error_that_does_not_heal_is_raised_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Asked(monkeypatch, [ValueError("no stream")], [[]], [[]])
    with pytest.raises(ValueError, match="no stream"):
        asked.lease()
    assert asked.asked == [(0, SOON_S)]
