"""The answers of scripts as values, and their decoders. `jobs` and the rooms of `features` read the
rest.

Replies of scripts have one shape under RESP2 and RESP3, and arrive undecoded.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from types import MappingProxyType
from typing import Any

from attrs import frozen

from headrace._model import receipt as receipt_values
from headrace._model.checks import reason as kept_reason
from headrace._model.codec import Codec, keeper
from headrace._model.job import Cause, Claim, Escaped
from headrace._model.receipt import Receipt
from headrace._model.settings import KIND
from headrace._model.state import (
    CHILDREN_TOLD,
    ChildFacts,
    Counts,
    JobState,
    OtherTerms,
    Repairs,
    WorkerFacts,
    WorkerState,
)
from headrace._model.steps import NAME_CHARACTERS


@frozen
class Page:
    items: Sequence[JobState[Any]]
    cursor: str  # '' on the last page

    def __iter__(self) -> Iterator[JobState[Any]]:
        return iter(self.items)


@frozen
class Died:
    id: str
    attempts: int
    reason: str
    kind: str = ""  # its header of that name


class Verdicts(list[bool]):
    """One bool per job to settle. `letters` has new dead letters, each with its queue, by their
    positions in this list. Other jobs that died because of the settlement have the positions -1,
    -2, …. `orphans` are the open children of cancelled jobs.
    """

    letters: Mapping[int, tuple[str, Died]] = MappingProxyType({})
    orphans: Sequence[tuple[str, str]] = ()


@frozen
class Grant:
    """The answer to a lease call. It has the claims, jobs that do not decode, and when the next
    delayed job is due.

    *healed*: the consumer group was missing and was created. *paused*: the queue is paused, a rate
    limit admits nothing before `next_due`, or a caller without a worker holds a suspect. *now*: the
    server's clock, in seconds. *levels*: the queue's number of levels, if the worker knows fewer.
    *died*: jobs without attempts left. *unread*: of a queue with terms, its look at new jobs did
    not reach their end. *structure*: of its terms, '' for none. *elsewhere*: nothing was handed
    out, because the queue has terms and the call was for one without, or the other way round.
    """

    claims: Sequence[Claim]
    undecodable: Sequence[tuple[Claim, str]] = ()
    next_due: float | None = None
    healed: bool = False
    paused: bool = False
    now: float | None = None  # by the server's clock
    levels: int | None = None
    died: Sequence[Died] = ()
    unread: bool = False
    structure: str | None = None
    elsewhere: bool = False

    @property
    def more(self) -> bool:
        """Whether to lease again at once. One call hands out about 1 MiB, and looks at a bounded
        number of jobs."""
        return self.next_due == 0


@frozen
class Declaration:
    version: int  # of the valid one
    others: Mapping[str, str]  # options that others declared

    def differences(self, queue: str, ours: Mapping[str, str], *, serving: bool) -> list[str]:
        """Describe each option of *queue* that others declared differently from *ours*. *serving*
        is true for a worker.
        """
        counts = "this one counts now" if serving else "theirs counts"
        return [
            f"queue {queue!r}: {name} is {ours.get(name)} here, and {theirs} as others declare it; {counts} "
            f"(version {self.version}); declare the queue once, for all who use it"
            for name, theirs in self.others.items()
        ]


@frozen
class Entered:
    """The answer to a worker that registers under a name that its user chose.

    `verdict` 1: the worker is registered, and is the heir of *other*, its predecessor, or ''. 0:
    *other*, as the server describes it, may be alive. -1: *other* is alive.
    """

    verdict: int
    other: str


@frozen
class Reclaimed:
    moved: int  # jobs
    again: float | None = None  # seconds until the next call is useful, if soon
    declared: int = 0
    more: bool = False
    promoted: int = 0
    next_due: float | None = None
    next_tick: float | None = None
    rests: bool = False  # no job is leased, delayed, scheduled or held back
    builds: Sequence[str] = ()  # that runs were held back for
    # the prefixes of queues in other slots in which runs have children
    homes: Sequence[str] = ()


def decoded_number(value: Any, limit: int = 1 << 53) -> int:
    """Decode a count or a moment below *limit*. Return 0 if it can't be one."""
    try:
        number = int(value) if value is not None else 0
    except ValueError:
        return 0
    return number if 0 <= number < limit else 0


def text(value: Any) -> str:
    """Decode bytes to text, with escapes for bytes that are not UTF-8. A str, from a decoding
    client, stays."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def named(value: Any) -> str:
    """Decode a job's id. An id that is not UTF-8 becomes `Escaped`, so that it can be sent back
    unchanged."""
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        return Escaped.of(value)


def raw(value: Any) -> bytes:
    return value.encode() if isinstance(value, str) else bytes(value)


def bools(reply: Any) -> list[bool]:
    return [x != 0 for x in reply]


def pairs(words: Any) -> list[tuple[str, str]]:
    return [*zip(map(text, words[::2]), map(text, words[1::2]), strict=True)]


def verdicts(items: Sequence[tuple[Claim, str | Cause]], dead: int) -> Callable[[Any], Verdicts]:
    """Return the decoder for settlements of these jobs, each with its reason. *dead* is the number
    of a death."""

    def decode(reply: Any) -> Verdicts:
        made = Verdicts(bools(reply))
        made.letters = {
            at: _letter(*items[at]) for at, verdict in enumerate(reply) if verdict == dead
        }
        return made

    return decode


def _letter(claim: Claim, reason: str | Cause) -> tuple[str, Died]:
    job = claim.job
    why = kept_reason(reason.reason if isinstance(reason, Cause) else reason)
    return job.queue, Died(job.id, job.attempt, why, job.headers.get(KIND, ""))


def died(letter: Any) -> Died:
    name, spent, why, kind = letter
    return Died(text(name), int(spent), text(why), text(kind))


def completed(claims: Sequence[Claim], codec: Codec[Any]) -> Callable[[Any], list[bool]]:
    """Return the decoder of a completion. It deletes payloads that the codec stores outside of
    Redis."""
    kept = keeper(codec)
    if kept is None:
        return bools

    def decode(reply: Any) -> list[bool]:
        won = bools(reply)
        # a script may have had room only for the first claims
        for claim, ours in zip(claims, won, strict=False):
            if ours and (ticket := getattr(claim, "ticket", None)) is not None:
                kept.discard(ticket)
        return won

    return decode


def receipts(reply: Any) -> list[Receipt]:
    return [Receipt(name, new) for name, new in added(reply)]


def added(reply: Any) -> list[tuple[str, bool]]:
    return [(text(i), a == 1) for i, a in zip(reply[::2], reply[1::2], strict=True)]


def plain_ids(reply: Any, place: str = "") -> list[str]:
    """Decode the ids of added jobs. They come as a list, or as the first of consecutive ids and
    their number. Each ends with *place*.
    """
    if len(reply) == 2 and isinstance(reply[1], int):
        ms, _, first = text(reply[0]).partition("-")
        return [f"{ms}-{n}{place}" for n in range(int(first), int(first) + reply[1])]
    return [text(i) + place for i in reply]


def plain_added(reply: Any) -> list[tuple[str, bool]]:
    return [(name, True) for name in plain_ids(reply)]


def plain_receipts(reply: Any) -> list[Receipt]:
    return receipt_values.receipts(plain_ids(reply))


def counts(reply: Any) -> Counts:
    """Decode `Counts`, whose fields come in order, but for `handing`."""
    numbers = [int(x) for x in reply]
    numbers.insert(-1, 0)
    return Counts(*numbers)


def measured(reply: Any) -> tuple[Counts, float, float]:
    """Decode `Counts`, and two ages in seconds."""
    *states, age, longest, _ = reply
    return counts(states), age / 1000, longest / 1000


def reclaimed(reply: Any) -> Reclaimed:
    moved, again, declared, more, promoted, due, tick, *others = reply
    words = [*map(text, others[1:]), ""]
    end = words.index("")
    return Reclaimed(
        moved,
        wait_of(again),
        declared,
        bool(more),
        promoted,
        wait_of(due),
        wait_of(tick),
        bool(others and others[0]),
        tuple(words[:end]),
        tuple(words[end + 1 : -1]),
    )


def wait_of(ms: int) -> float | None:
    return None if ms < 0 else ms / 1000


def moved(reply: Any) -> tuple[int, str]:
    return int(reply[0]), text(reply[1])


def redriven(
    from_step: str, codec: Codec[Any], ticket: str | None
) -> Callable[[Any], tuple[int, str]]:
    """Return the decoder of a redrive. It raises `ValueError` for a run without the step
    *from_step*. If the codec stores the replaced payload outside of Redis, it deletes that by its
    *ticket*.
    """
    kept = None if ticket is None else keeper(codec)

    def decode(reply: Any) -> tuple[int, str]:
        if reply[0] > 0 and kept is not None and ticket is not None:
            kept.discard(ticket)
        if reply[0] >= 0:
            return moved(reply)
        names = ", ".join(repr(text(name)) for name in reply[2:]) or "none"
        raise ValueError(
            f"from_step={from_step!r}: the run has no such step; it has recorded {names:.2000}"
        )

    return decode


def declaration(reply: Any) -> Declaration:
    words = [text(word) for word in reply[1:]]
    return Declaration(int(reply[0]), dict(zip(words[::2], words[1::2], strict=True)))


def entered(reply: Any) -> Entered:
    return Entered(int(reply[0]), text(reply[1]))


def repairs(reply: Any) -> tuple[Repairs, str, str]:
    return Repairs(*map(int, reply[2:])), text(reply[0]), text(reply[1])


def workers(reply: Any, queue: str) -> list[WorkerState]:
    now = reply[0]
    return [
        WorkerState(
            text(name),
            queue,
            since / 1000,
            deadline / 1000,
            leased,
            deadline >= now,
            facts(text(told)),
            text(request),
            OtherTerms(text(differs[0]), differs[1] / 1000) if differs else None,
        )
        for name, deadline, since, leased, told, request, differs, *_ in reply[1:]
    ]


def facts(told: str) -> WorkerFacts | None:
    """Decode the facts of a worker, `<ms> <JSON>`. Return `None` for no facts, or foreign ones."""
    at, _, data = told.partition(" ")
    try:
        known: Any = json.loads(data)
        host, version, python = (str(known[name])[:100] for name in ("host", "version", "python"))
        pid, memory, slots = (int(known[name]) for name in ("pid", "memory", "slots"))
        own = int(known.get("own", 0))
        build, missing = (
            str(known.get(name, ""))[:NAME_CHARACTERS] for name in ("build", "missing")
        )
        reported = int(at) / 1000
        rows = known.get("children", ())[:CHILDREN_TOLD]
        children = tuple(_child(row, reported) for row in rows)
        return WorkerFacts(
            host, version, python, pid, memory, slots, reported, build, missing, children, own
        )
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None


def _child(row: Sequence[Any], reported: float) -> ChildFacts:
    pid, jobs, age, memory, job = row
    return ChildFacts(int(pid), int(jobs), reported - float(age), int(memory), str(job)[:500])


def known_kinds(reply: Any) -> frozenset[str]:
    now, *rows = reply
    alive = (row for row in rows if row[1] >= now)
    return frozenset(text(kind) for row in alive for kind in chain(*row[7:]))


def ids(reply: Any) -> tuple[str, list[str]]:
    return text(reply[0]), [text(one) for one in reply[1:]]
