"""Jobs as scripts reply them, and their decoder."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from attrs import evolve

from headrace._model.checks import ENTRY_FIELDS, KEPT_FIELDS
from headrace._model.codec import Codec, binds, keeper, of_job
from headrace._model.job import NO_HEADERS, Claim, Job, Postponed, make_job
from headrace._model.state import Attempt, JobState
from headrace._protocol.features.flows.rows import children_of
from headrace._protocol.features.history import Tried
from headrace._protocol.features.runs.records import progress_of, records
from headrace._protocol.replies import Grant, Page, decoded_number, died, named, raw, text
from headrace.errors import ReplyError, RetryLater, describe_error

_REASON, _TRACEBACK, _ATTEMPTS, _CHILDREN = (name.encode() for name in KEPT_FIELDS)
_ENTRY_FIELDS = tuple(name.encode() for name in (*ENTRY_FIELDS, *KEPT_FIELDS))
NONCE = b"headrace-nonce"  # header of a flow's job in its stage, used by scripts only


class Jobs:
    """Decoder for the jobs of one queue. It keeps no state. Ids that are made of an entry end with
    *place*."""

    def __init__(self, queue: str, codec: Codec[Any], place: str = "") -> None:
        self._queue = queue
        self._place = place
        self._decode = codec.decode
        self._keeper = keeper(codec)
        self._binding = codec if binds(codec) else None

    def job(
        self, entry: Any, fields: Any, deliveries: int = 0, releases: int = 0
    ) -> tuple[Job, int, str]:
        """Return the job, its token, and why it can't be decoded. The reason is '' if it can. If it
        can't, `payload` is raw bytes.
        """
        name = text(entry)
        headers: dict[str, str] = {}
        job_id = name
        carried = 0
        enqueued = None
        # python -bb forbids to compare these
        undecoded = type(fields[0]) is bytes if fields else False
        # nearly every job has only a payload
        if undecoded and len(fields) == 2 and fields[0] == b"data":
            payload = fields[1]
        elif (
            undecoded
            and len(fields) == 4
            and fields[0] == b"data"
            and fields[2] not in _ENTRY_FIELDS
        ):
            payload = fields[1]
            # nearly every other job has only trace headers besides
            headers = {text(fields[2]): text(fields[3])}
        else:
            own: dict[bytes, Any] = {}
            for key, value in zip(fields[::2], fields[1::2], strict=True):
                if raw(key) == b"id" and not value:
                    continue  # an empty id counts as none
                if raw(key) in _ENTRY_FIELDS:
                    own.setdefault(raw(key), value)
                elif raw(key) != NONCE:
                    headers[text(key)] = text(value)
            job_id = named(own[b"id"]) if b"id" in own else name
            payload = own.get(b"data")
            carried = decoded_number(own.get(b"attempt"), 10**9)
            enqueued = own.get(b"enq")
        ms = (
            decoded_number(enqueued)
            if enqueued is not None
            else decoded_number(name.partition("-")[0])
        )
        token = carried + deliveries
        wrong = ""
        value = b"" if payload is None else raw(payload)
        if payload is None:
            wrong = "no payload: the entry has no field 'data'"
        else:
            try:
                decode = (
                    self._decode if self._binding is None else of_job(self._binding, job_id).decode
                )
                value = decode(value)
            except KeyboardInterrupt:
                raise
            except RetryLater as asked:
                wrong = Postponed.of(asked)
            except BaseException as error:
                wrong = f"payload does not decode: {describe_error(error)}"
        job = make_job(job_id, value, self._queue, headers, max(1, token - releases), ms / 1000)
        return job, token, wrong

    def grant(
        self, reply: Any, worker: str, duration: float | None, kind: type[Claim] = Claim
    ) -> Grant | None:
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
                kept = (
                    self._keeper
                    if self._binding is None
                    else keeper(of_job(self._binding, claim.job.id))
                )
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
        """Yield claims on jobs with more than a payload, or with earlier leases, each with its
        decoding error."""
        for entry, fields, deliveries, releases, *deaths in taken:
            job, token, reason = self.job(entry, fields, deliveries, releases)
            name = text(entry)
            named = job.id != name or "id" in map(text, fields[::2])
            claim = kind(
                job, worker, name, deliveries, token, duration, moment, named, sum(map(len, fields))
            )
            if self._place:
                self.placed(claim)
            if deaths:
                claim.deaths = deaths[0]
            yield claim, reason

    def placed(self, claim: Claim) -> None:
        if not claim.named:
            object.__setattr__(claim.job, "id", claim.entry + self._place)

    def _kept(self, claims: Sequence[Claim], taken: Any, fresh: Any) -> Iterator[tuple[Any, bytes]]:
        came = {
            text(entry): raw(payload)
            for entry, payload in zip(fresh[::2], fresh[1::2], strict=True)
        }
        for entry, fields, *_ in taken:
            # the first counts
            own = {raw(key): value for key, value in zip(fields[-2::-2], fields[::-2], strict=True)}
            came[text(entry)] = raw(own.get(b"data", b""))
        for claim in claims:
            yield claim, came[claim.entry]

    def state(self, row: Any, now: int) -> JobState[Any]:
        entry, fields, state, deliveries, releases, worker, ms, *more = row
        name = text(state)
        if name == "dead":
            return self._letter(entry, fields)
        if name.startswith("ended:"):
            return self._end(
                entry, fields, name[6:], deliveries, text(worker) or None, ms / 1000, *more
            )
        job, token, wrong = self.job(entry, fields, deliveries, releases)
        reason = wrong or _text_field(fields, _REASON)
        traceback = _text_field(fields, _TRACEBACK)
        tried = Tried.of(_text_field(fields, _ATTEMPTS) or "")
        due = ms / 1000 if name == "delayed" or (name == "blocked" and ms) else None
        since = (now - ms) / 1000 if name == "leased" else None
        holder = text(worker) if name == "leased" else None
        its_entry = None if name == "delayed" else text(entry)
        state = JobState(
            job, name, holder, since, due, reason, its_entry, traceback, suspended=bool(more)
        )
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
        """Decode the end of a job, with the job if the history has it. Its attempts end with the
        last one."""
        # the first counts
        kept = {raw(key): value for key, value in zip(fields[-2::-2], fields[::-2], strict=True)}
        enqueued = decoded_number(kept.get(b"enq"))
        tried = Tried.of(_text_field(fields, _ATTEMPTS) or "").beside(text(run))
        if state == "completed" and began:
            tried = tried.ended(Attempt(deliveries or number, began / 1000, at, worker))
        known: Any = enqueued / 1000 if enqueued else None
        job, _, _ = self.job(entry, fields)
        payload = job.payload if b"data" in kept else None
        job = make_job(named(entry), payload, self._queue, job.headers, number, known)
        reason = _text_field(fields, _REASON)
        traceback = _text_field(fields, _TRACEBACK) if state == "dead" else None
        children = children_of(_text_field(fields, _CHILDREN) or "")
        return tried.told(
            JobState(job, state, worker, at, None, reason, None, traceback, children=children),
            deliveries,
        )

    def _letter(self, entry: Any, fields: Any) -> JobState[Any]:
        died = decoded_number(text(entry).partition("-")[0]) / 1000
        if [raw(key) for key in fields[:6:2]] != [b"reason", b"worker", b"released"]:
            job, _, wrong = self.job(entry, fields)
            return JobState(
                job, "dead", None, died, None, wrong or "put here by somebody else", text(entry)
            )
        job, token, wrong = self.job(entry, fields[6:], 0, decoded_number(fields[5]))
        reason = text(fields[1]) or wrong or ""
        state = JobState(
            job,
            "dead",
            text(fields[3]),
            died,
            None,
            reason,
            text(entry),
            _text_field(fields[6:], _TRACEBACK),
        )
        return Tried.of(_text_field(fields, _ATTEMPTS) or "").told(state, token)

    def page(self, reply: Any) -> Page:
        cursor, now, rows = reply
        return Page([self.state(row, now) for row in rows], text(cursor))

    def found(self, reply: Any) -> tuple[JobState[Any] | None, str]:
        """Decode the answer of `find`, with the results of steps as they are kept, and the cursor
        to continue from."""
        now, row, cursor, *run = reply
        if not row:
            return None, text(cursor)
        state = self.state(row, now)
        if run:
            rows, progress, deliveries = run
            its = records(rows)
            steps = tuple(record.step(now / 1000, record.value) for record in its)
            state = evolve(state, steps=steps, progress=progress_of(progress), build=its.build)
            if not text(row[2]).startswith("ended:"):  # that row has them already
                state = (
                    Tried.of(_text_field(row[1], _ATTEMPTS) or "")
                    .beside(text(deliveries))
                    .told(state, state.deliveries)
                )
        return state, text(cursor)


def _text_field(fields: Any, name: bytes) -> str | None:
    return next(
        (
            text(fields[i + 1]) or None
            for i in range(0, len(fields) - 1, 2)
            if raw(fields[i]) == name
        ),
        None,
    )
