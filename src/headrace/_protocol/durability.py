"""Waits for replicas and disk. They are commands around a call, on its connection, and their
answers.

`WAIT` and `WAITAOF` are about the writes of their own connection, so they follow the call in one
round trip. A call that is answered from its record writes, too (lua/lib/record.lua), and so waits
for the record. The recorded writes come before it.

`WAIT` counts replicas of the history in which it ends. A primary that is replaced during the wait,
and then becomes primary again, has lost the write, but has replicas. So we read the replication id,
which changes with each promotion, before the write and after the wait. Both must be equal.

With `appendfsync everysec` Valkey answers `WAITAOF` before the fsync, and so did Redis 7.4.0 to
7.4.2. Such an answer says nothing, so that these servers are refused.

A batch waits once, after its last part. This covers all parts, if the history is still the first
part's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

from attrs import define, evolve, field

from headrace._model.policy import Durability
from headrace._protocol.op import Op, pack
from headrace.errors import ConfigurationError, NotDurable

R = TypeVar("R")
# for replicas and for the disk, each: appendfsync everysec takes one or two seconds
WAIT_MS = 2_000
_ASK = pack(("INFO", "replication"))
_ASK_WHO = pack(("INFO", "server"))
_ASK_WHEN = pack(("CONFIG", "GET", "appendfsync"))
_PRIMARY = re.compile(rb"^role:master\b", re.MULTILINE)
_HISTORY = re.compile(rb"^master_replid:(\w+)", re.MULTILINE)
_EARLY = re.compile(rb"^(valkey_version:[\w.]+|redis_version:7\.4\.[0-2]\b)", re.MULTILINE)
_NEVER = re.compile(r"unknown command|NOPERM|appendonly", re.IGNORECASE)


# the wait of one round trip, and its answers
@define(eq=False)
class DurabilityWait:
    wanted: Durability
    waits: bool = True
    begins: bool = True  # whether to read the history before the write
    ends: bool = True  # whether to read it after the wait
    first: list[bytes] = field(factory=list[bytes])
    """The history of the batch's first part, shared with its last."""
    replicas: int | None = None
    fsynced: int | None = None
    reason: str = ""

    def begin(self) -> None:
        self.replicas = self.fsynced = None
        self.reason = ""

    def wrapped(self, commands: Sequence[bytes], left: float | None) -> list[bytes]:
        """Return the commands to send. *left* are the remaining seconds, or `None` without a
        bound."""
        ms = WAIT_MS if left is None else max(1, min(WAIT_MS, int(left * 250)))
        before = [_ASK] if self.begins else []
        after = (
            [pack(("WAIT", self.wanted.replicas, ms))]
            if self.waits and self.wanted.replicas
            else []
        )
        after += [pack(("WAITAOF", 1, 0, ms))] if self.waits and self.wanted.fsync else []
        return [*before, *commands, *after, *([_ASK] if self.ends else [])]

    def unwrapped(self, answers: Sequence[Any], every: int = 1) -> list[Any]:
        """Return the replies of the operations, each the last of *every* commands, and store the
        other replies."""
        rest = list(answers)
        first = _history(rest.pop(0)) if self.begins else b"".join(self.first)
        last = _history(rest.pop()) if self.ends else first
        fsynced: Any = rest.pop() if self.waits and self.wanted.fsync else None
        replicas: Any = rest.pop() if self.waits and self.wanted.replicas else None
        rest = rest[every - 1 :: every]
        if all(isinstance(reply, Exception) for reply in rest):
            return rest  # no write happened
        self.first[:] = [first]
        if self.waits and self.wanted.fsync:
            numbers: Any = self._checked(fsynced)
            number: int = numbers[0] if numbers else 0
            self.fsynced = min(number if self.fsynced is None else self.fsynced, number)
        if self.waits and self.wanted.replicas:
            number = self._checked(replicas)
            self.replicas = min(number if self.replicas is None else self.replicas, number)
        if not first or first != last:
            self.reason = "the primary changed meanwhile, or may not be asked (INFO)"
        return rest

    def _checked(self, reply: Any) -> Any:
        if isinstance(reply, Exception):
            self.reason = str(reply)
            return 0
        return reply

    def judge(self, answers: Sequence[Any]) -> None:
        """Raise `NotDurable` if the write is not as durable as wanted."""
        if not self.waits:
            return
        lacks = (self.replicas or 0) < self.wanted.replicas or (
            self.wanted.fsync and not self.fsynced
        )
        if lacks or self.reason:
            raise NotDurable(
                str(self.wanted), self.replicas or 0, bool(self.fsynced), self.reason, answers
            )


def _history(reply: Any) -> bytes:
    """Return the replication id of a primary. It is empty if the server is no primary, or does not
    tell."""
    text = _bytes(reply)
    if _PRIMARY.search(text) is None:
        return b""
    found = _HISTORY.search(text)
    return found[1] if found else b""


def with_durability(op: Op[R], durable: Durability | None) -> Op[R]:
    return op if durable is None else evolve(op, durability=DurabilityWait(durable))


def durable_batch(ops: Iterable[Op[R]], durable: Durability) -> Iterator[Op[R]]:
    """Yield the parts of a batch, with a wait for durability after the last, which only the end of
    *ops* reveals."""
    first: list[bytes] = []
    ahead: Op[R] | None = None
    begins = True
    for op in ops:
        if ahead is not None:
            yield evolve(
                ahead,
                durability=DurabilityWait(
                    durable, waits=False, begins=begins, ends=False, first=first
                ),
            )
            begins = False
        ahead = op
    if ahead is not None:
        yield evolve(ahead, durability=DurabilityWait(durable, begins=begins, first=first))


def trials(wanted: Durability) -> list[bytes]:
    """Pack a command that tests, without a write, whether a server can wait at all."""
    trials = [_ASK, *([pack(("WAIT", 0, 1))] if wanted.replicas else [])]
    if wanted.fsync:
        trials += [pack(("WAITAOF", 1, 0, 1)), _ASK_WHO, _ASK_WHEN]
    return trials


def tried(wanted: Durability, answers: Sequence[Any]) -> bool:
    """Tell whether the server can wait. It can't while it is no primary. Raises
    `ConfigurationError` if it never can.
    """
    waits = list(answers)
    who = when = None
    if wanted.fsync:
        *waits, who, when = answers
    for answer in waits:
        if isinstance(answer, Exception):
            if _NEVER.search(str(answer)[:300]):
                raise ConfigurationError(
                    f'durable="{wanted}": nothing was sent, as the server says: {answer}; {_HELP}'
                )
            return False
    if (found := _EARLY.search(_bytes(who))) is not None and not _fsync_known(when):
        server = found[0].decode().replace("_version:", " ").capitalize()
        raise ConfigurationError(
            f'durable="{wanted}": nothing was sent, as {server} answers WAITAOF before the fsync '
            "with appendfsync everysec: set appendfsync always; a user with ACLs needs +config|get"
        )
    return True


def _bytes(reply: Any) -> bytes:
    text = reply.encode() if isinstance(reply, str) else reply
    return text if isinstance(text, bytes) else b""


def _fsync_known(setting: Any) -> bool:
    if setting is None or isinstance(setting, Exception):
        return False
    # the reply of CONFIG GET: a mapping by RESP3, a list of two by RESP2
    words = setting.values() if hasattr(setting, "values") else setting
    return not {b"always", b"no"}.isdisjoint(map(_bytes, words))


_HELP = (
    '"fsync" takes Redis 7.2 or Valkey, with appendonly yes; '
    'a user with ACLs needs +info and +wait, for "fsync" +info and +waitaof'
)
