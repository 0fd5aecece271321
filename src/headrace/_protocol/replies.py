"""The answers of scripts as values, and their decoders. The only module that sees the server's replies.

Replies of scripts have one shape under RESP2 and RESP3, and arrive undecoded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, repeat
from types import MappingProxyType
from typing import Any, Literal, cast

from attrs import evolve, frozen

from headrace._model import receipt as receipt_values
from headrace._model.checks import ENTRY_FIELDS, KEPT_FIELDS
from headrace._model.checks import reason as kept_reason
from headrace._model.codec import Codec, binds, keeper, of_job
from headrace._model.event import ENDS
from headrace._model.flow import FlowState
from headrace._model.job import NO_HEADERS, Cause, Claim, Escaped, Job, Postponed, make_job
from headrace._model.receipt import Receipt
from headrace._model.settings import KIND
from headrace._model.state import (
    Attempt,
    Children,
    Counts,
    JobState,
    OtherTerms,
    Place,
    Repairs,
    Schedule,
    WorkerFacts,
    WorkerState,
)
from headrace._model.steps import Progress, Record
from headrace._model.timing import Timing
from headrace._protocol.attempts import Tried
from headrace._protocol.numbers import decoded_number
from headrace.errors import ReplyError, RetryLater, describe_error

_POSITIONS = {"active": "running", "done": "completed", "dead": "failed"}  # the other states have one name
_HOW = {-1: "again", 0: "there", 1: "gone", 2: "gone, or dead"}
_REASON, _TRACEBACK, _ATTEMPTS, _CHILDREN = (name.encode() for name in KEPT_FIELDS)
_ENTRY_FIELDS = tuple(name.encode() for name in (*ENTRY_FIELDS, *KEPT_FIELDS))
NONCE = b"headrace-nonce"  # header of a flow's job in its stage, used by scripts only


@frozen
class Page:
    """One page of a listing. Its `cursor` is empty when it was the last."""

    items: Sequence[JobState[Any]]
    cursor: str

    def __iter__(self) -> Iterator[JobState[Any]]:
        return iter(self.items)


@frozen
class Ended:
    """The end of a job: `state` is one of `ENDS`, with the data of the history; `there` if the job has not ended;
    `gone` or `gone, or dead` if nothing else is known; `again` if the caller must ask again.
    """

    state: str
    with_result: bool = False
    reason: str | None = None


@frozen
class Died:
    """A job that became a dead letter. *kind* is its header `kind`, or ''."""

    id: str
    attempts: int
    reason: str
    kind: str = ""


class Verdicts(list[bool]):
    """One bool per job to settle. *buried*: new dead letters, each with its queue, by their positions in this list, or
    by -1, -2, … if other jobs died because of the settlement.
    """

    buried: Mapping[int, tuple[str, Died]] = MappingProxyType({})


@frozen
class Grant:
    """The answer to a lease call: the claims, jobs that do not decode, and when the next delayed job is due.

    *healed*: the consumer group was missing and was created. *paused*: the queue is paused, a rate limit admits
    nothing before `next_due`, or a caller without a worker holds a suspect. *now*: the server's clock, in seconds.
    *levels*: the queue's number of levels, if the worker knows fewer. *died*: jobs without attempts left. *unread*:
    of a queue with terms, its look at new jobs did not reach their end. *structure*: of its terms, '' for none.
    *elsewhere*: nothing was handed out: the queue has terms and the call was for one without, or the other way round.
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
        """Whether to lease again at once. One call hands out about 1 MiB, and looks at a bounded number of jobs."""
        return self.next_due == 0


@frozen
class Declaration:
    """The answer to a declaration. It has the number of the valid one, and the options that others declared."""

    version: int
    others: Mapping[str, str]

    def differences(self, queue: str, ours: Mapping[str, str], *, serving: bool) -> list[str]:
        """Describe each option of *queue* that others declared differently from *ours*. *serving*: we are a worker."""
        counts = "this one counts now" if serving else "theirs counts"
        return [
            f"queue {queue!r}: {name} is {ours.get(name)} here, and {theirs} as others declare it; {counts} "
            f"(version {self.version}); declare the queue once, for all who use it"
            for name, theirs in self.others.items()
        ]


@frozen
class Entered:
    """The answer to a worker that registers under a name that its user chose.

    `verdict` 1: the worker is registered, and is the heir of *other*, its predecessor, or ''. 0: *other*, as the server
    describes it, may be alive. -1: *other* is alive.
    """

    verdict: int
    other: str


@frozen
class Reclaimed:
    """The answer to a reclaim call. It has the moved jobs, and the seconds until the next call is useful, if soon."""

    moved: int
    again: float | None = None
    declared: int = 0
    more: bool = False
    promoted: int = 0
    next_due: float | None = None
    next_tick: float | None = None
    rests: bool = False  # no job is leased, delayed, scheduled or held back


@frozen
class DueSchedules:
    """Schedules with a tick that is due: (name, due, timing, missed) each; times in ms of the server's clock.

    `cursor` is empty if these are all schedules. `last` has the last run of each, as 'ms id' or ''; `jobs` the fields
    of the jobs of one that was asked for by name.
    """

    now: int
    next: float | None
    rows: Sequence[tuple[str, int, str, str]]
    cursor: str = ""
    last: Sequence[str] = ()
    jobs: Sequence[Any] = ()


@frozen
class SchedulePlan:
    """The operations for due ticks, the seconds until the next tick, and a message for each broken schedule."""

    ops: Sequence[Any]
    wait: float | None
    wrong: Sequence[str] = ()


# -- decoders ----------------------------------------------------------------------------------------


def text(value: Any) -> str:
    """Decode bytes to text, with escapes for bytes that are not UTF-8. A str, from a decoding client, stays."""
    return value.decode("utf-8", "backslashreplace") if isinstance(value, bytes) else str(value)


def _named(value: Any) -> str:
    """Decode a job's id. An id that is not UTF-8 becomes `Escaped`, so that it can be sent back unchanged."""
    try:
        return value.decode() if isinstance(value, bytes) else str(value)
    except UnicodeDecodeError:
        return Escaped.of(value)


def raw(value: Any) -> bytes:
    """Return the bytes of a reply, also from a client that decodes."""
    return value.encode() if isinstance(value, str) else bytes(value)


def bools(reply: Any) -> list[bool]:
    """Decode one bool per job. Any number but 0 is true."""
    return [x != 0 for x in reply]


def verdicts(items: Sequence[tuple[Claim, str | Cause]], dead: int) -> Callable[[Any], Verdicts]:
    """Return the decoder for settlements of these jobs, each with its reason. *dead* is the number of a death."""

    def decode(reply: Any) -> Verdicts:
        made = Verdicts(bools(reply))
        made.buried = {at: _buried(*items[at]) for at, verdict in enumerate(reply) if verdict == dead}
        return made

    return decode


def _buried(claim: Claim, reason: str | Cause) -> tuple[str, Died]:
    job = claim.job
    why = kept_reason(reason.reason if isinstance(reason, Cause) else reason)
    return job.queue, Died(job.id, job.attempt, why, job.headers.get(KIND, ""))


def steps(flow: str) -> Callable[[Any], Verdicts]:
    """Return the decoder of steps of a flow."""

    def decode(reply: Any) -> Verdicts:
        letters: Any = reply[-1] if reply and isinstance(reply[-1], list) else []
        made = Verdicts(bools(reply[: len(reply) - bool(letters)]))
        made.buried = {-n: (f"{flow}/{text(stage)}", died(letter)) for n, (stage, *letter) in enumerate(letters, 1)}
        return made

    return decode


def died(letter: Any) -> Died:
    """Decode a job that became a dead letter."""
    name, spent, why, kind = letter
    return Died(text(name), int(spent), text(why), text(kind))


def completed(claims: Sequence[Claim], codec: Codec[Any]) -> Callable[[Any], list[bool]]:
    """Return the decoder of a completion. It deletes payloads that the codec stores outside of Redis."""
    kept = keeper(codec)
    if kept is None:
        return bools

    def decode(reply: Any) -> list[bool]:
        won = bools(reply)
        for claim, ours in zip(claims, won, strict=False):  # a script may have had room only for the first claims
            if ours and (ticket := getattr(claim, "ticket", None)) is not None:
                kept.discard(ticket)
        return won

    return decode


def one(reply: Any) -> bool:
    """Decode the bool of a single job."""
    return bool(reply[0] != 0)


def receipts(reply: Any) -> list[Receipt]:
    """Decode pairs of id and `added`."""
    return [Receipt(text(i), a == 1) for i, a in zip(reply[::2], reply[1::2], strict=True)]


def plain_ids(reply: Any, place: str = "") -> list[str]:
    """Decode the ids of added jobs. They come as a list, or as the first of consecutive ids and their number. Each ends
    with *place*.
    """
    if len(reply) == 2 and isinstance(reply[1], int):
        ms, _, first = text(reply[0]).partition("-")
        return [f"{ms}-{n}{place}" for n in range(int(first), int(first) + reply[1])]
    return [text(i) + place for i in reply]


def plain_receipts(reply: Any) -> list[Receipt]:
    """Decode ids as `plain_ids` does."""
    return receipt_values.receipts(plain_ids(reply))


class Jobs:
    """Decoder for the jobs of one queue. It keeps no state. Ids that are made of an entry end with *place*."""

    def __init__(self, queue: str, codec: Codec[Any], place: str = "") -> None:
        self._queue = queue
        self._place = place
        self._decode = codec.decode
        self._keeper = keeper(codec)
        self._binding = codec if binds(codec) else None

    def job(self, entry: Any, fields: Any, deliveries: int = 0, releases: int = 0) -> tuple[Job, int, str]:
        """Return the job, its token, and why it can't be decoded ('' if it can; if not, `payload` is raw bytes)."""
        name = text(entry)
        headers: dict[str, str] = {}
        undecoded = type(fields[0]) is bytes if fields else False  # python -bb forbids to compare these
        if undecoded and len(fields) == 2 and fields[0] == b"data":  # nearly every job has only a payload
            job_id = name
            payload = fields[1]
            carried = 0
            enqueued = None
            headers = {}
        elif undecoded and len(fields) == 4 and fields[0] == b"data" and fields[2] not in _ENTRY_FIELDS:
            job_id = name
            payload = fields[1]
            carried = 0
            enqueued = None
            headers = {text(fields[2]): text(fields[3])}  # nearly every other job has only trace headers besides
        else:
            own: dict[bytes, Any] = {}
            for key, value in zip(fields[::2], fields[1::2], strict=True):
                if raw(key) == b"id" and not value:
                    continue  # an empty id counts as none
                if raw(key) in _ENTRY_FIELDS:
                    own.setdefault(raw(key), value)
                elif raw(key) != NONCE:
                    headers[text(key)] = text(value)
            job_id = _named(own[b"id"]) if b"id" in own else name
            payload = own.get(b"data")
            carried = decoded_number(own.get(b"attempt"), 10**9)
            enqueued = own.get(b"enq")
        ms = decoded_number(enqueued) if enqueued is not None else decoded_number(name.partition("-")[0])
        token = carried + deliveries
        wrong = ""
        value = payload
        if payload is None:
            wrong = "no payload: the entry has no field 'data'"
            value = b""
        else:
            try:
                decode = self._decode if self._binding is None else of_job(self._binding, job_id).decode
                value = decode(raw(payload))
            except KeyboardInterrupt:
                raise
            except RetryLater as asked:
                wrong = Postponed.of(asked)
                value = raw(payload)
            except BaseException as error:
                wrong = f"payload does not decode: {describe_error(error)}"
                value = raw(payload)
        job = make_job(job_id, value, self._queue, headers, max(1, token - releases), ms / 1000)
        return job, token, wrong

    def grant(self, reply: Any, worker: str, duration: float | None, kind: type[Claim] = Claim) -> Grant | None:
        """Decode the reply to a lease call. Return `None` when this worker was declared dead."""
        try:
            known, next_due, taken, fresh, healed, now = reply[:6]
            more: list[Any] = [None, None, 0, None]
            more[: len(reply) - 6] = reply[6:]
            levels, letters, unread, structure = more
        except (TypeError, ValueError):
            raise ReplyError(f"lease answered {reply!r:.200}") from None
        if not known:
            return None
        claims: list[Claim] = []
        wrong: list[tuple[Claim, str]] = []
        moment = now / 1000
        for claim, reason in self._taken(taken, worker, duration, moment, kind):
            if reason:
                wrong.append((claim, reason))
            else:
                claims.append(claim)
        queue = self._queue
        decode = self._decode
        make = make_job
        place = self._place
        last = ""
        enqueued = 0.0
        for entry, payload in zip(fresh[::2], fresh[1::2], strict=True):  # nearly every job
            name = entry.decode() if type(entry) is bytes else text(entry)
            try:
                value = decode(payload if type(payload) is bytes else raw(payload))
            except KeyboardInterrupt:
                raise
            except BaseException:
                job, token, reason = self.job(entry, [b"data", payload], 1)
                claim = kind(job, worker, name, 1, token, duration, moment, False, len(payload))
                self.placed(claim)
                wrong.append((claim, reason))
                continue
            ms, _, _ = name.partition("-")
            if ms != last:
                last = ms
                enqueued = int(ms) / 1000
            job = make(name + place, value, queue, NO_HEADERS, 1, enqueued)
            claims.append(kind(job, worker, name, 1, 1, duration, moment, False, len(payload)))
        if self._keeper is not None:
            for claim, data in self._kept(claims, taken, fresh):
                kept = self._keeper if self._binding is None else keeper(of_job(self._binding, claim.job.id))
                if kept is not None and (ticket := kept.ticket(data)) is not None:
                    claim.ticket = ticket
        return Grant(
            claims,
            wrong,
            None if next_due < 0 else next_due / 1000,
            bool(healed),
            known == 2,
            None if now < 0 else moment,
            levels or None,
            list(map(died, letters or ())),
            bool(unread),
            None if structure is None else text(structure),
            known == 5,
        )

    def _taken(
        self, taken: Any, worker: str, duration: float | None, moment: float, kind: type[Claim]
    ) -> Iterator[tuple[Claim, str]]:
        """Yield claims on jobs with more than a payload, or with earlier leases, each with its decoding error."""
        for entry, fields, deliveries, releases, *deaths in taken:
            job, token, reason = self.job(entry, fields, deliveries, releases)
            name = text(entry)
            named = job.id != name or "id" in map(text, fields[::2])
            claim = kind(job, worker, name, deliveries, token, duration, moment, named, sum(map(len, fields)))
            if self._place:
                self.placed(claim)
            if deaths:
                claim.deaths = deaths[0]
            yield claim, reason

    def placed(self, claim: Claim) -> None:
        """Add the place to the id of a job that was enqueued without one."""
        if not claim.named:
            object.__setattr__(claim.job, "id", claim.entry + self._place)

    def _kept(self, claims: Sequence[Claim], taken: Any, fresh: Any) -> Iterator[tuple[Any, bytes]]:
        """Yield each claim with its payload, undecoded."""
        came = {text(entry): raw(payload) for entry, payload in zip(fresh[::2], fresh[1::2], strict=True)}
        for entry, fields, *_ in taken:
            own = {raw(key): value for key, value in zip(fields[-2::-2], fields[::-2], strict=True)}  # the first counts
            came[text(entry)] = raw(own.get(b"data", b""))
        for claim in claims:
            yield claim, came[claim.entry]

    def state(self, row: Any, now: int) -> JobState[Any]:
        entry, fields, state, deliveries, releases, worker, ms, *more = row
        name = text(state)
        if name == "dead":
            return self._letter(entry, fields)
        if name.startswith("ended:"):
            return self._end(entry, fields, name[6:], deliveries, text(worker) or None, ms / 1000, *more)
        job, token, wrong = self.job(entry, fields, deliveries, releases)
        reason = wrong or _kept(fields, _REASON)
        traceback = _kept(fields, _TRACEBACK)
        tried = Tried.of(_kept(fields, _ATTEMPTS) or "")
        if name == "delayed":
            due = ms / 1000
            known = JobState(job, name, due=due, reason=reason, traceback=traceback, suspended=bool(more))
            return tried.told(known, token)
        due = ms / 1000 if name == "blocked" and ms else None
        since = (now - ms) / 1000 if name == "leased" else None
        holder = text(worker) if name == "leased" else None
        state = JobState(job, name, holder, since, due, reason, text(entry), traceback, suspended=bool(more))
        return tried.told(state, token)

    def _end(
        self,
        entry: Any,
        fields: Any,
        state: str,
        number: int,
        worker: str | None,
        at: float,
        began: int = 0,
        deliveries: int = 0,
        run: Any = b"",
    ) -> JobState[Any]:
        """Decode the end of a job, with the job if the history has it. Its attempts end with the last one."""
        kept = {raw(key): value for key, value in zip(fields[-2::-2], fields[::-2], strict=True)}  # the first counts
        enqueued = decoded_number(kept.get(b"enq"))
        tried = Tried.of(_kept(fields, _ATTEMPTS) or "").beside(text(run))
        if state == "completed" and began:
            tried = tried.ended(Attempt(deliveries or number, began / 1000, at, worker))
        known: Any = enqueued / 1000 if enqueued else None
        job, _, _ = self.job(entry, fields)
        payload = job.payload if b"data" in kept else None
        job = make_job(_named(entry), payload, self._queue, job.headers, number, known)
        reason = _kept(fields, _REASON)
        traceback = _kept(fields, _TRACEBACK) if state == "dead" else None
        children = children_of(_kept(fields, _CHILDREN) or "")
        return tried.told(
            JobState(job, state, worker, at, None, reason, None, traceback, children=children), deliveries
        )

    def _letter(self, entry: Any, fields: Any) -> JobState[Any]:
        """Decode a dead letter. A foreign client's entry is shown as a job with all its fields."""
        died = decoded_number(text(entry).partition("-")[0]) / 1000
        if [raw(key) for key in fields[:6:2]] != [b"reason", b"worker", b"released"]:
            job, _, wrong = self.job(entry, fields)
            return JobState(job, "dead", None, died, None, wrong or "put here by somebody else", text(entry))
        job, token, wrong = self.job(entry, fields[6:], 0, decoded_number(fields[5]))
        reason = text(fields[1]) or wrong or ""
        state = JobState(job, "dead", text(fields[3]), died, None, reason, text(entry), _kept(fields[6:], _TRACEBACK))
        return Tried.of(_kept(fields, _ATTEMPTS) or "").told(state, token)

    def page(self, reply: Any) -> Page:
        cursor, now, rows = reply
        return Page([self.state(row, now) for row in rows], text(cursor))

    def found(self, reply: Any) -> tuple[JobState[Any] | None, str]:
        """Decode the answer of `find`, with the results of steps as they are kept, and the cursor to continue from."""
        now, row, cursor, *run = reply
        if not row:
            return None, text(cursor)
        state = self.state(row, now)
        if run:
            rows, progress, deliveries = run
            steps = tuple(record.step(now / 1000, record.value) for record in records(rows))
            state = evolve(state, steps=steps, progress=progress_of(progress))
            if not text(row[2]).startswith("ended:"):  # that row has them already
                state = Tried.of(_kept(row[1], _ATTEMPTS) or "").beside(text(deliveries)).told(state, state.deliveries)
        return state, text(cursor)


def _kept(fields: Any, name: bytes) -> str | None:
    """Decode a field that a retry leaves, `None` if there is none."""
    return next((text(fields[i + 1]) or None for i in range(0, len(fields) - 1, 2) if raw(fields[i]) == name), None)


def children_of(kept: str) -> Children | None:
    """Decode the places of a job's children, as a history keeps them. Return `None` without any."""
    counts, *rows = kept.split("\x1e")
    if not re.fullmatch(r"\d+ \d+ \d+", counts):
        return None
    parts = [row.split("\x1f") for row in rows]
    places = tuple(Place(one[0], one[1], _POSITIONS.get(one[2], one[2])) for one in parts if len(one) == 3)
    completed, failed, cancelled = map(int, counts.split())
    return Children(completed, failed, cancelled, places)


def records(rows: Any) -> list[Record]:
    """Decode the records of a run, in their order."""
    return [_record(number, *row) for number, row in enumerate(rows, 1)]


def _record(
    number: int,
    name: Any,
    kind: Any,
    began: int,
    ended: int,
    attempt: int,
    value: Any,
    due: int,
    traced: Any = b"",
    _place: int | None = None,
    by: Any = b"",
    sent: int = 0,
    omitted: int = 0,
) -> Record:
    kept = None if value is None else raw(value)
    known = (text(name), text(kind), began, ended, attempt, kept, due, text(traced))
    return Record(number, *known, text(by), sent, omitted)


def progress_of(kept: Any) -> Progress | None:
    """Decode the progress of a job. Return `None` if it has noted none."""
    at, _, rest = ("" if kept is None else text(kept)).partition(" ")
    fraction, _, words = rest.partition(" ")
    try:
        return Progress(float(fraction), words, int(at) / 1000)
    except ValueError:
        return None


def counts(reply: Any) -> Counts:
    """Decode `Counts`, whose fields come in order, but for `handing`."""
    numbers = [int(x) for x in reply]
    numbers.insert(-1, 0)
    return Counts(*numbers)


def measured(reply: Any) -> tuple[Counts, float, float]:
    """Decode `Counts`, and two ages in seconds."""
    return counts(reply[:-2]), reply[-2] / 1000, reply[-1] / 1000


def reclaimed(reply: Any) -> Reclaimed:
    moved, again, declared, more, promoted, due, tick, *rests = reply
    return Reclaimed(moved, _wait(again), declared, bool(more), promoted, _wait(due), _wait(tick), bool(rests))


def _wait(ms: int) -> float | None:
    return None if ms < 0 else ms / 1000


def moved(reply: Any) -> tuple[int, str]:
    """Decode the number of changed jobs, and the cursor to continue from."""
    return int(reply[0]), text(reply[1])


def redriven(from_step: str, codec: Codec[Any], ticket: str | None) -> Callable[[Any], tuple[int, str]]:
    """Return the decoder of a redrive. It raises `ValueError` for a run without the step *from_step*. It deletes the
    payload that was replaced, if the codec stores it outside of Redis: by its *ticket*.
    """
    kept = None if ticket is None else keeper(codec)

    def decode(reply: Any) -> tuple[int, str]:
        if reply[0] > 0 and kept is not None and ticket is not None:
            kept.discard(ticket)
        if reply[0] >= 0:
            return moved(reply)
        names = ", ".join(repr(text(name)) for name in reply[2:]) or "none"
        raise ValueError(f"from_step={from_step!r}: the run has no such step; it has recorded {names:.2000}")

    return decode


def declaration(reply: Any) -> Declaration:
    words = [text(word) for word in reply[1:]]
    return Declaration(int(reply[0]), dict(zip(words[::2], words[1::2], strict=True)))


def entered(reply: Any) -> Entered:
    return Entered(int(reply[0]), text(reply[1]))


def place(reply: Any) -> tuple[int, str, str]:
    """Decode the number of changed jobs, and the place and cursor from which to continue."""
    return int(reply[0]), text(reply[1]), text(reply[2])


def repairs(reply: Any) -> tuple[Repairs, str, str]:
    """Decode the repairs, and the place and cursor from which to continue."""
    return Repairs(*map(int, reply[2:])), text(reply[0]), text(reply[1])


def workers(reply: Any, queue: str) -> list[WorkerState]:
    """Decode the registered workers of a queue."""
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
        return WorkerFacts(host, version, python, pid, memory, slots, int(at) / 1000)
    except (ValueError, TypeError, LookupError, OverflowError, RecursionError):
        return None


def known_kinds(reply: Any) -> frozenset[str]:
    """Decode the kinds of jobs that live workers of a queue have handlers for."""
    now, *rows = reply
    alive = (row for row in rows if row[1] >= now)
    return frozenset(text(kind) for row in alive for kind in chain(*row[7:]))


def ended(reply: Any) -> list[Ended]:
    return [Ended(_HOW[one]) if isinstance(one, int) else _end(text(one)) for one in reply]


def _end(kept: str) -> Ended:
    state, _, _, with_result, _, reason, *_ = [*kept.split(" ", 5), "", "", "", "", "", ""]
    return Ended(state if state in ENDS else "gone", with_result == "1", reason or None)


def kept(reply: Any) -> list[bytes | Literal[False] | None]:
    """Decode kept results. `None` means no result. `False` means that the reply was full, so ask again."""
    return [None if result is None else not isinstance(result, int) and raw(result) for result in reply]


def ids(reply: Any) -> tuple[str, list[str]]:
    """Decode the cursor to continue from, and the ids."""
    return text(reply[0]), [text(one) for one in reply[1:]]


def flow_rows(reply: Any, begun: Any) -> tuple[list[Any], Any]:
    """Split the answer of `flow_read` into complete rows and the incomplete row, if any.

    *begun*: the incomplete row of the previous call.
    """
    rows = [*reply]
    if begun is not None and len(rows[0]) > 2 and rows[0][10]:  # else the job is gone, or has other children by now
        head = begun
        more = rows[0]
        rows[0] = [*head[:7], [*head[7], *more[7]], [*head[8], *more[8]], *more[9:]]
    rest = rows.pop() if flow_cursor(rows[-1]) else None
    return rows, rest


def flow_cursor(row: Any) -> bytes:
    """Return the cursor of an incomplete row. It is empty if the row is complete."""
    return raw(row[9]) if row is not None and len(row) > 2 else b""


def flow_state(name: str, row: Any, strict: bool = False) -> FlowState | None:
    """Decode the state of one job of a flow; `None` if there is no such job.

    *strict*: `ReplyError` if another program wrote the key of its run.
    """
    if len(row) == 2 and strict:
        raise ReplyError(f"job {name!r}: its run's key {text(row[1])} is not headrace's: remove it, or rename it")
    if len(row) < 3:
        return None
    position, stage, _, started, ended, attributes, left, kept, children = row[:9]
    pending = decoded_number(left)
    results = {text(s): raw(r) for s, r in zip(kept[::2], kept[1::2], strict=True)}
    how = text(position)
    failed: tuple[str, ...] = ("dead", "cancelled")
    if not pending:  # a child that still runs was redriven after its parent stopped waiting: it counts as failed
        failed += ("active", "blocked")
    ends = (text(at).partition(" ")[0] for at in children[1::4])
    kept_results = zip(children[2::4], children[3::4], strict=True)
    ended_in = list(zip(map(text, children[::4]), ends, kept_results, strict=True))
    return FlowState(
        name,
        _POSITIONS.get(how, how),
        text(stage),
        _attributes(attributes),
        results,
        {child: raw(result) if there else None for child, end, (there, result) in ended_in if end == "done"},
        tuple(child for child, end, _ in ended_in if end in failed),
        pending,
        _moment(started),
        _moment(ended),
        (text(row[13]) or None) if len(row) > 13 else None,
    )


def passing(name: str, row: Any) -> tuple[list[float | None], list[tuple[str, str, str, float | None]]]:
    """Decode the times of a row of `flow_read`, and the id, state, stage and end of each child."""
    children: list[tuple[str, str, str, float | None]] = []
    for child, at in zip(row[8][::4], row[8][1::4], strict=True):
        how, stage, left, *_ = [*text(at).split(" "), "", "", ""]
        children.append((f"{name}/{text(row[11])}/{text(child)}", _POSITIONS.get(how, how), stage, _moment(left)))
    return [_moment(one) for one in row[12]], children


def _moment(ms: Any) -> float | None:
    return decoded_number(ms) / 1000 if ms else None


def _attributes(kept: Any) -> dict[str, str | list[str]]:
    try:
        found: Any = json.loads(raw(kept) or b"{}")
    except (ValueError, RecursionError):  # foreign bytes
        return {}
    return cast("dict[str, str | list[str]]", found) if isinstance(found, dict) else {}


def ticking(reply: Any) -> DueSchedules:
    """Decode schedules for the worker that serves them."""
    now, following, rows, cursor = reply
    known = [(text(name), due, text(timing), text(missed)) for name, due, timing, missed, *_ in rows]
    last = [text(row[4]) if len(row) > 4 else "" for row in rows]
    return DueSchedules(now, _wait(following), known, text(cursor), last, [row[5] for row in rows if len(row) > 5])


def recurring(reply: Any) -> tuple[bool, list[str]]:
    """Decode whether to make the declared schedules, and the names of ended schedules."""
    return reply[0] == 1, [text(name) for name in reply[1:]]


_LATER_MS = 10**14  # a schedule that moves to another shard has its next tick so much later; a paused one, twice


def schedules(ticking: DueSchedules) -> list[Schedule]:
    """Decode schedules for the user."""
    found: list[Schedule] = []
    for (name, due, stored, missed), last in zip(ticking.rows, chain(ticking.last, repeat("")), strict=False):
        try:
            t = Timing.parse(stored)
            every, cron, zone = (t.every / 1000, None, None) if t.every else (None, t.cron, t.zone)
        except (ValueError, OverflowError):  # foreign
            every = None
            cron = stored
            zone = None
        later, next_due = divmod(due, _LATER_MS) if 0 <= due < 4 * _LATER_MS else (0, due)
        ran, _, job = last.partition(" ")
        at = int(ran) / 1000 if ran.isdecimal() and len(ran) < 18 else None
        found.append(Schedule(name, next_due / 1000, every, cron, zone, missed, later > 1, at, job or None))
    return found
