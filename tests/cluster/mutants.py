"""Bugs planted in the code for clusters, shards, Sentinel and replicas. Each names the test that
finds it."""

from __future__ import annotations

from types import ModuleType

from attrs import frozen

from headrace._core.shards import (
    enqueue as sharded_enqueue,
    reshard as resharding,
    transfer as handing,
)
from headrace._engine import base as engine
from headrace._net.base import cluster, sentinel
from headrace._net.sync import subscription
from headrace._protocol import durability
from tests.support.planted import Edit


@frozen
class Mutant:
    """A text of a module, its replacement, and the test that plants it and finds it."""

    module: ModuleType
    old: str
    new: str
    found_by: str


MUTANTS = {
    "MOVED is read as ASK": Mutant(
        cluster, "isinstance(reply, errors.MovedError)", "isinstance(reply, errors.MasterDownError)",
        "test_where_a_slot_has_gone_is_learnt",
    ),
    "a call sent again has another number": Mutant(
        cluster, "str(lane.calls)", "str(__import__('time').monotonic_ns())", "test_a_lost_reply_and_a_slot_that_moves"
    ),
    "what was answered is sent again": Mutant(
        cluster, "if i not in trip.replies]", "]", "test_a_lost_reply_and_a_slot_that_moves"
    ),
    "ASKING is left out": Mutant(
        cluster, "[ASKING, packed]", "[ASKING.replace(b'6', b'4').replace(b'ASKING', b'PING'), packed]",
        "test_a_key_that_has_gone_ahead",
    ),
    "TRYAGAIN is passed on": Mutant(
        cluster, "self._failed(reply)", "raise ValueError(reply)", "test_a_call_waits_while_its_slot_is_open",
    ),
    "a listener does not hear that its slot has gone": Mutant(
        subscription, 'kind == b"sunsubscribe"', 'kind == b"never"', "test_a_listener_follows_its_slot"
    ),
    "one heartbeat for all masters": Mutant(
        engine, "self._where(consumer.ops.keys)", "None", "test_a_frozen_master_is_no_others_concern"
    ),
}  # fmt: skip

SENTINEL = {
    "the former primary counts as the primary": Mutant(
        sentinel,
        "return (connection.host, connection.port) == self.primary",
        "return True",
        "test_another_primary",
    ),
}

DURABLE = {
    "what no replica has is durable": Mutant(
        durability, "(self.replicas or 0) < self.wanted.replicas", "(self.replicas or 0) < 0", "test_not_durable"
    ),
    "a batch on two primaries is durable": Mutant(
        durability, "if not first or first != last:", "if not first:", "test_another_primary_meanwhile",
    ),
    "a wait that ends in another history is durable": Mutant(
        durability, "if not first or first != last:", "if not first:", "test_a_wait_that_outlives_its_history"
    ),
    "what the disk has not is durable": Mutant(
        durability, "self.wanted.fsync and not self.fsynced", "self.wanted.fsync and self.fsynced is None",
        "test_a_disk_that_lags",
    ),
    "an answer before the fsync is believed": Mutant(
        durability, '{b"always", b"no"}', '{b"always", b"no", b"everysec"}', "test_a_server_that_answers_too_early"
    ),
}  # fmt: skip

DURABLE_IN_SCRIPTS: dict[str, tuple[Edit, str]] = {
    "what is repeated writes nothing": (
        ("*", "redis.call('PEXPIRE', KEYS[1], '600000')", "local _ = kept"),
        "test_a_repeated_call_writes_before_it_waits",
    ),
}  # fmt: skip

SHARDS = {
    "what may have arrived goes elsewhere": Mutant(
        sharded_enqueue, "except Sealed as error:\n                yield from map.refused(part.ops, error)",
        "except Exception:\n                map.sealed.add(part.ops.shard.number)",
        "test_what_may_have_arrived_goes_nowhere_else",
    ),
    "a shard leaves the table before its time": Mutant(
        resharding, "one.seconds < RECORD_S", "one.seconds < 0", "test_the_number_of_shards_changes_under_work"
    ),
}  # fmt: skip

STORM = {
    "new shards do not wait for older ones": Mutant(
        resharding, "for shard in old if shard.number not in empty]", "for shard in old if False]", "order"
    ),
    "what a sealed shard refused leaves the outbox": Mutant(
        handing, "in enumerate(some)\n                    if at not in refused", "in enumerate(some)", "lost"
    ),
    "a call sent again has another number": Mutant(
        cluster, "str(lane.calls)", "str(__import__('time').monotonic_ns())", "twice"
    ),
}  # fmt: skip
"""Found by the storm, each by a complaint."""

DURABLE_STORM = {
    "a wait that ends in another history is durable": Mutant(
        durability, "if not first or first != last:", "if not first:", "lost"
    ),
}  # fmt: skip
"""Found by the storm of durable calls."""

HAND_OVER = {
    "what no replica has leaves the outbox": Mutant(
        handing, "return answer.refused if (waits.replicas or 0) >= 1 and not waits.reason else None",
        "return answer.refused", "test_it_leaves_the_outbox_when_a_replica_has_it",
    ),
    "a replica that is away is none": Mutant(
        handing, "answer.replicas < 0 and", "False and", "test_a_replica_that_is_away_is_waited_for"
    ),
}  # fmt: skip
