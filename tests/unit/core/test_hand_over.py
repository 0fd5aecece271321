"""Calls that send jobs to other shards, step by step."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace._core.effects import Now, Phase, Send, Sleep
from headrace._core.shards.map import ShardMap
from headrace._core.shards.roles import ShardSlots, hand
from headrace._core.shards.transfer import Targets, hand_over
from headrace._core.worker.idle import AGAIN_S
from headrace._model.settings import QueueSettings
from headrace._protocol.keys import Keys
from headrace._protocol.queue_ops import Ops
from headrace._protocol.shards import name_of
from headrace._protocol.transfer_ops import Accepted, Intent, Pending
from headrace.errors import NotDurable

KNOWN = ShardMap(Ops(Keys.of("q"), QueueSettings(shards=2)))
PARTS = KNOWN.ordered()
TO = [
    "k0",
    next(f"k{n}" for n in range(99) if KNOWN.table.shard_of(f"k{n}") != KNOWN.table.shard_of("k0")),
]
INTENTS = [
    Intent(name_of(key, "q", f"n{place}"), ["", "", 2, "data", b"x"])
    for place, key in enumerate(TO)
]


def target(place: int) -> tuple[str, int]:
    """Return the shard to which an intent goes."""
    return "q", KNOWN.table.shard_at(INTENTS[place].check)


class Run:
    """A call that is driven by hand. `sent` has the operations of its current step, by name."""

    def __init__(self, targets: Targets, pages: int = 1, outboxes: Any = PARTS[:1]) -> None:
        self._call = hand_over(KNOWN, outboxes, targets, pages)
        self.effect: Any = None
        self.value: list[str] | None = None
        self._now = 0.0
        self._next(lambda: next(self._call))

    def _next(self, take: Any) -> None:
        try:
            self.effect = take()
            while isinstance(self.effect, Now):
                self.effect = self._call.send(self._now)
        except StopIteration as end:
            self.effect, self.value = None, end.value

    @property
    def sent(self) -> list[Any]:
        """Return the name of the script and its first argument."""
        assert isinstance(self.effect, Send)
        (op,) = self.effect.ops
        return [op.name, op.args[0]]

    def answer(self, reply: Any) -> None:
        self._next(lambda: self._call.send([reply]))

    def fail(self, error: Exception) -> None:
        self._next(lambda: self._call.throw(error))


def test_the_time_is_what_a_shard_told_before_the_page_was_read() -> None:
    """Another call of this program may have asked the shard since then, and the page may be older
    than its answer."""
    targets = Targets(since={target(0): 100, target(1): 200})
    run = Run(targets)
    run.answer(Pending(0, INTENTS, []))
    assert run.sent == ["accept", 100]
    targets.since[target(1)] = 900_000
    run.answer(Accepted(True, 150, 0))
    assert run.sent == ["accept", 200]
    run.answer(Accepted(True, 900_100, 0))
    assert run.effect.ops[0].args[2:4] == [2, 0]  # two have come


def test_a_shard_that_tells_its_time_is_asked_again_for_a_page_read_anew() -> None:
    run = Run(Targets())
    run.answer(Pending(0, INTENTS[:1], []))
    assert run.sent == ["accept", 0]
    run.answer(Accepted(False, 500, 0))
    assert run.effect.ops[0].args[:4] == [0, 1000, 0, 0]
    run.answer(Pending(0, INTENTS[:1], []))
    assert run.sent == ["accept", 500]
    run.answer(Accepted(True, 501, 0))
    assert run.effect.ops[0].args[2] == 1
    run.answer(Pending(0, [], []))
    assert run.value == []


def test_what_fails_is_left_alone_for_a_while_and_others_go_on() -> None:
    run = Run(Targets(), pages=3)
    run.answer(Pending(0, INTENTS, []))
    run.fail(ConnectionError("cut"))
    assert run.sent == ["accept", 0]  # the other one
    run.answer(Accepted(False, 500, 0))
    assert len(run.effect.ops[0].args) == 4 + 3  # but for the shard that failed
    run.answer(Pending(0, INTENTS[1:], []))
    run.answer(Accepted(True, 501, 0))
    assert run.effect.ops[0].args[2] == 1
    run.answer(Pending(0, [], []))
    assert run.value == ["ConnectionError: cut"]


def test_the_shards_of_a_silent_node_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of a silent node are not asked, and no jobs are read for them. The jobs of the other
    shards go on."""
    silent = KNOWN.at(target(1)[1])
    monkeypatch.setattr(KNOWN, "sound", lambda keys: keys != silent.keys)
    outbox = KNOWN.at(target(0)[1])
    run = Run(Targets(), 3, [silent, outbox])
    assert run.effect.ops[0].keys[0].startswith(outbox.keys.prefix)
    run.answer(Pending(0, INTENTS, []))
    assert run.sent == ["accept", 0]
    assert run.effect.ops[0].keys[0].startswith(outbox.keys.prefix)
    run.answer(Accepted(True, 500, 0))
    assert len(run.effect.ops[0].args) == 4 + 2 + 3  # what has come, and what is not to be read
    run.answer(Pending(0, [], []))
    assert run.value == [f"shard {target(1)[1]}: its node does not answer"]


def test_only_what_a_replica_has_leaves_the_outbox() -> None:
    for late in (True, False):
        run = Run(Targets(since={target(0): 100}))
        run.answer(Pending(0, INTENTS[:1], []))
        assert run.effect.ops[0].durability is None
        run.answer(Accepted(True, 101, 1))
        (op,) = run.effect.ops
        assert (op.name, op.durability.wanted.replicas) == ("accept", 1)
        if late:
            run.fail(NotDurable("replicas:1", 0, False, "", [Accepted(True, 102, 1)]))
            assert run.value == []
            continue
        op.durability.replicas = 1
        run.answer(Accepted(True, 102, 1))
        assert run.effect.ops[0].args[2] == 1


def test_what_has_come_is_closed_and_then_over() -> None:
    run = Run(Targets(), pages=2)
    run.answer(Pending(0, [], ["1 q n0", "9 q n1", "what is this"]))
    assert run.sent == ["close", "n0"]
    run.answer(1)
    assert run.effect.ops[0].args[:4] == [0, 1000, 0, 3]
    assert set(run.effect.ops[0].args[4:]) == {"1 q n0", "9 q n1", "what is this"}
    run.answer(Pending(0, [], []))
    assert run.value == []


def test_what_was_not_closed_is_not_over() -> None:
    run = Run(Targets(), pages=2)
    run.answer(Pending(0, [], ["0 q n0", "1 q n1"]))
    assert run.sent == ["close", "n0"]
    run.fail(ConnectionError("cut"))
    assert run.sent == ["close", "n1"]
    run.answer(1)
    assert run.effect.ops[0].args[2:5] == [0, 1, "1 q n1"]
    run.answer(Pending(0, [], ["0 q n0"]))
    assert run.value == ["ConnectionError: cut"]


def test_outboxes_where_all_rest_are_looked_into_now_and_then() -> None:
    """A worker does not rest while an outbox has intents. Outboxes where all workers rest are
    looked into now and then.
    """
    shared = ShardSlots(map=KNOWN, make=lambda _: pytest.fail("no shard is new"))
    leasing = SimpleNamespace(shard_gone=False)
    some = [
        SimpleNamespace(
            shared=shared, ops=ops, leasing=leasing, idle=SimpleNamespace(all_idle=False)
        )
        for ops in PARTS
    ]
    worker: Any = SimpleNamespace(phase=Phase.RUNNING, settings=SimpleNamespace(heartbeat=2.0))
    role, now, looked = hand(worker, some), 100.0, list[int]()  # type: ignore[arg-type]
    answer: Any = None
    while now < 100.0 + 2 * AGAIN_S:
        effect = role.send(answer)
        answer = None
        if isinstance(effect, Now):
            answer = now
        elif isinstance(effect, Send):
            looked.append(len(effect.ops))
            answer = [Pending(0, [], []) for _ in effect.ops]
        else:
            assert isinstance(effect, Sleep)
            now += min(effect.seconds, 0.5)  # it is woken, as all roles are
            some[0].idle.all_idle = some[1].idle.all_idle = now >= 104.0
    assert looked == [2, 2, 2]
