"""Bugs planted in what sends to a cluster, each with the test that must find it."""

from __future__ import annotations

from types import ModuleType

from attrs import frozen

from headrace._base import engine, subscription
from headrace._base.cluster import scatter


@frozen
class Mutant:
    """A text of a module, what replaces it, and a test of `test_faults`."""

    module: ModuleType
    old: str
    new: str
    found_by: str


MUTANTS = {
    "MOVED is read as ASK": Mutant(
        scatter, "isinstance(reply, errors.MovedError)", "isinstance(reply, errors.MasterDownError)",
        "test_where_a_slot_has_gone_is_learnt",
    ),
    "a call sent again has another number": Mutant(
        scatter, "str(lane.calls)", "str(__import__('time').monotonic_ns())", "test_a_lost_reply_and_a_slot_that_moves"
    ),
    "what was answered is sent again": Mutant(
        scatter, "if i not in trip.replies]", "]", "test_a_lost_reply_and_a_slot_that_moves"
    ),
    "ASKING is left out": Mutant(
        scatter, "[ASKING, packed]", "[ASKING.replace(b'6', b'4').replace(b'ASKING', b'PING'), packed]",
        "test_a_key_that_has_gone_ahead",
    ),
    "TRYAGAIN is passed on": Mutant(
        scatter, "self._failed(reply)", "raise ValueError(reply)", "test_a_call_waits_while_its_slot_is_open",
    ),
    "a listener does not hear that its slot has gone": Mutant(
        subscription, 'kind == b"sunsubscribe"', 'kind == b"never"', "test_a_listener_follows_its_slot"
    ),
    "one heartbeat for all masters": Mutant(
        engine, "return self._where(consumer.ops.keys)", "return None", "test_a_frozen_master_is_no_others_concern"
    ),
}  # fmt: skip
