"""Lanes: numbered calls, one in flight each, by which a server tells a repeated call from a new one.

All executors of this process that connect to one server share its lanes, so that a short-lived one leaves no record
behind.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any

from attrs import define, field

from headrace._protocol.op import Op

Meanwhile = Callable[[], None] | None


@define
class Lanes:
    """Free lanes, by the prefix of their records. Taking and returning one is atomic under the interpreter's lock."""

    free: dict[str, list[Lane]] = field(factory=dict)  # pyright: ignore[reportUnknownVariableType]
    pid: int = field(factory=os.getpid)

    def take(self, prefix: str) -> Lane:
        """Take a lane for a call whose record begins with *prefix* ('' for a call without a record), and number the
        call.
        """
        if self.pid != os.getpid():  # a fork copied the lanes: two processes on one lane would get each other's answers
            self.free, self.pid = {}, os.getpid()
        try:
            lane = self.free[prefix].pop()
        except LookupError:
            lane = Lane()
        lane.calls += 1
        return lane

    def give(self, ops: Sequence[Op[Any]], lanes: Sequence[Lane]) -> None:
        """Return the lanes of calls that were answered."""
        for op, lane in zip(ops, lanes, strict=True):
            if not lane.repeated:
                self.put(op.lane_prefix, lane)

    def put(self, prefix: str, lane: Lane) -> None:
        """Return the lane of a call whose record begins with *prefix*, and whose first attempt was answered."""
        try:
            self.free[prefix].append(lane)
        except KeyError:
            self.free.setdefault(prefix, []).append(lane)

    def drop(self, prefix: str) -> list[str]:
        """Forget the free lanes, and return the keys of their records, which are not needed any more."""
        free = self.free.get(prefix, []) if self.pid == os.getpid() else []
        keys: list[str] = []
        with suppress(IndexError):
            while True:
                keys.append(prefix + free.pop().name)
        return keys


@define(eq=False)
class Lane:
    """A sequence of numbered calls, one in flight at a time."""

    name: str = field(factory=lambda: secrets.token_hex(8))
    calls: int = 0
    repeated: bool = False  # a call was sent again: a copy may still be on its way, and must find this record


_SHARED: dict[Hashable, Lanes] = {}  # by server


def shared(pool: Any) -> Lanes:
    """Return the lanes of this process for the server of *pool*.

    A server under two names has two sets of lanes; two servers under one name share a set. Either way, a lane has one
    call in flight, and its numbers grow.
    """
    return _SHARED.setdefault(place(pool), Lanes())


def place(pool: Any) -> Hashable:
    """Return the identity of *pool*'s server."""
    get = pool.connection_kwargs.get
    return get("host"), get("port"), get("path"), get("db"), getattr(pool, "service_name", None)


def pack_all(ops: Sequence[Op[Any]], lanes: Sequence[Lane], verb: str) -> list[bytes]:
    return [op.packed(verb, lane.name, str(lane.calls)) for op, lane in zip(ops, lanes, strict=True)]
