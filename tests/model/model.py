"""The promises of a queue in plain Python, without a server, a clock or scripts.

A job is in one state at a time, and has a *place*: a number that is drawn when it is added at the
back, and kept until it goes to the back again, is delayed, or dies. Nearly every rule is about
these two:

- What waits is leased level by level; in each by place, and what was parked comes before what was
  not. So parking is going to the front of a level. A job of a level behind the first has a new
  place from its lease on.
- Whoever leased a job may complete it as long as it has the place that it was leased at.
- Whoever holds it (the same place, leased, by this worker, in this delivery) may do anything else
  with it.

`tests/model/machine.py` does the same things to this and to a server, and compares.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from attrs import define, field, frozen

NO_PAYLOAD = "no payload: the entry has no field 'data'"
PRIORITY = "headrace-priority"
UNIQUE = "headrace-unique"
NO_ATTEMPTS = "no attempts left: "
GRACE = 60_000  # ms after which a tick counts as missed
EXPIRED = "its workers died, or let its leases expire"
MOST_DEATHS = 20
DIED = f"its process died {MOST_DEATHS} times while it ran"


@define(eq=False)
class Job:
    """A job. `payload` is `None` where a foreign producer gave none."""

    payload: bytes | None
    id: str | None = None
    """`None` until it is seen: the server gives one to jobs that have none."""
    headers: Mapping[str, str] = field(factory=dict)
    enqueued_at: float | None = None
    """As first seen; it never changes."""
    state: str = "waiting"
    place: int = 0
    deliveries: int = 0
    unspent: int = 0
    """Deliveries that spent no attempt."""
    holder: str = ""
    """Who has leased it, or had it when it died."""
    expired: bool = False
    due: float = 0.0
    reason: str = ""
    """Why it died, or went round again the last time."""
    deaths: int = 0
    """How often its holder died, or its lease ran out, since it got its place."""
    own_term: bool = False
    """Whether its lease has a duration of its own."""

    @property
    def suspect(self) -> bool:
        """Tell whether the job is leased alone, because its holder has died twice."""
        return self.deaths >= 2

    @property
    def level(self) -> int:
        """The level of the job, where 0 comes first."""
        return int(self.headers.get(PRIORITY, 0))

    @property
    def attempt(self) -> int:
        """The number of its present or last attempt."""
        return max(1, self.deliveries - self.unspent)


@frozen(eq=False)
class Held:
    """A lease, as its holder knows it. It may be stale by now."""

    job: Job
    worker: str
    place: int
    token: int


@define(eq=False)
class Recurring:
    """A schedule. It has the parts of its jobs, its interval in ms, and its policy for missed
    ticks."""

    payload: bytes
    headers: Mapping[str, str]
    every: int
    missed: str
    due: int = 0
    """The next tick, in ms; of a paused schedule, the tick that was the next."""
    paused: bool = False
    last: tuple[int | None, str | None] = (None, None)
    """The moment (ms) and the id of the last job that it enqueued."""


@define
class Model:
    """A queue."""

    max_attempts: int | None = None
    dead_limit: int = 1000
    now: float = 0.0
    counts_foreign: bool = True
    """Whether the server knows of entries that no script added (Redis 6.2 does not)."""
    jobs: list[Job] = field(factory=list[Job])
    """All there are, dead ones too."""
    alive: dict[str, bool] = field(factory=dict[str, bool])
    """The registered workers; `False`: silent for longer than it may be, and nobody has said so
    yet."""
    results: dict[str, bytes] = field(factory=dict[str, bytes])
    """By id: the results of the completions that gave one."""
    cancelled: set[str] = field(factory=set[str])
    """Ids whose last job was cancelled. A dead letter's redrive, and a new job, take the id
    away."""
    taken: set[str] = field(factory=set[str])
    """Ids that are taken for a while, by throttle or after a unique job."""
    gone: dict[str, int] = field(
        factory=lambda: dict.fromkeys(
            ("enqueued", "completed", "cancelled", "deleted", "dead_trimmed"), 0
        )
    )
    schedules: dict[str, Recurring] = field(factory=dict[str, Recurring])
    _places: int = 0

    # -- what can be seen --------------------------------------------------------------------------

    def in_state(self, *states: str) -> list[Job]:
        """Return the jobs in these states, by place."""
        return sorted((job for job in self.jobs if job.state in states), key=lambda job: job.place)

    def waiting(self) -> list[Job]:
        """The waiting jobs, in the order of their next leases."""

        def rank(job: Job) -> tuple[int, int]:
            if job.state == "parked" and job.suspect:
                return 0, 1
            return job.level, 0 if job.state == "parked" else 2

        return sorted(self.in_state("parked", "waiting"), key=rank)

    def delayed(self) -> list[Job]:
        """Return the delayed jobs, the first due first."""
        return sorted(self.in_state("delayed"), key=lambda job: job.due)

    def listing(self, state: str) -> list[Job]:
        """Return the listing of a queue in its order."""
        listings: dict[str, Callable[[], list[Job]]] = {
            "waiting": self.waiting,
            "running": lambda: self.in_state("leased"),
            "delayed": self.delayed,
            "dead": lambda: self.in_state("dead"),
        }
        return listings[state]()

    def counts(self) -> dict[str, int]:
        """Return the number of jobs in each state, and of ended jobs by their end."""
        states = ("waiting", "parked", "leased", "delayed", "blocked", "dead")
        return (
            {state: len(self.in_state(state)) for state in states}
            | self.gone
            | {"handing": 0, "held": 0}
        )

    def named(self, name: str) -> Job | None:
        """Return the job of this id that is neither dead nor gone. There is at most one."""
        return next((job for job in self.jobs if job.id == name and job.state != "dead"), None)

    def find(self, name: str) -> Job | None:
        """Return the job of this id, or else the one that died last."""
        return self.named(name) or next(
            (job for job in reversed(self.in_state("dead")) if job.id == name), None
        )

    def result(self, name: str) -> bytes | None:
        """Return the kept result of the last job of an id. A cancelled job has none."""
        return None if name in self.cancelled else self.results.get(name)

    def completable(self, held: Held) -> bool:
        """Tell whether the job is still where it was leased, whoever holds it now."""
        return held.job.place == held.place

    def mine(self, held: Held) -> bool:
        """Tell whether this is the present lease of the job. An expired one is until a reclaim."""
        job = held.job
        now = (job.state, job.place, job.holder, job.deliveries)
        return now == ("leased", held.place, held.worker, held.token)

    # -- how jobs move -----------------------------------------------------------------------------

    def _move(self, job: Job, state: str) -> None:
        self._places += 1
        job.place, job.state, job.deaths = self._places, state, 0

    def _park(self, job: Job) -> None:
        job.state, job.expired = "parked", False

    def _remove(self, jobs: Iterable[Job], how: str) -> int:
        found = list(jobs)
        for job in found:
            self._move(job, "gone")
            self.jobs.remove(job)
        self.gone[how] += len(found)
        return len(found)

    def _bury(self, job: Job, reason: str, worker: str) -> None:
        self._move(job, "dead")
        job.reason, job.holder, job.expired = reason, worker, False
        dead = self.in_state("dead")
        self._remove(dead[: max(0, len(dead) - self.dead_limit)], "dead_trimmed")

    def promote(self) -> int:
        """Move due jobs to the back."""
        due = [job for job in self.delayed() if job.due <= self.now]
        for job in due:
            self._move(job, "waiting")
        return len(due)

    # -- producing ---------------------------------------------------------------------------------

    def enqueue(self, job: Job) -> bool:
        """Add a job, unless its id is taken. One that has a `due` in the future is delayed."""
        if job.id is not None and self.named(job.id):
            return False
        self._move(job, "delayed" if job.due > self.now else "waiting")
        self.jobs.append(job)
        self.cancelled.discard(str(job.id))
        self.gone["enqueued"] += 1
        return True

    def enqueue_if(self, job: Job, how: str, most: int) -> str:
        """Add a job under one condition, and return the outcome. *most* jobs may wait, if that is
        the condition."""
        name = str(job.id)
        if how in {"throttle", "unique_for"} and name in self.taken:
            return "dropped" if how == "throttle" else "present"
        there = self.named(name)
        if there is not None:
            if how != "replace" or there.state == "leased" or there.deliveries > there.unspent:
                return "present"
            there.payload, there.headers, there.due = job.payload, job.headers, job.due
            there.reason = ""
            self._move(there, "delayed" if job.due > self.now else "waiting")
            return "replaced"
        if how == "max_waiting" and len(self.in_state("waiting", "parked", "delayed")) >= most:
            return "refused"
        self.taken |= {name} if how == "throttle" else set()
        self.enqueue(job)
        return "added"

    def appear(self, job: Job) -> None:
        """Add an entry like a foreign producer."""
        self.enqueue(job)
        self.gone["enqueued"] -= not self.counts_foreign

    # -- schedules ---------------------------------------------------------------------------------

    def by_tick(self) -> list[str]:
        """Return the schedules' names, the next due first and paused ones last."""
        return sorted(
            self.schedules,
            key=lambda name: (self.schedules[name].paused, self.schedules[name].due, name),
        )

    def schedule(self, name: str, made: Recurring) -> Recurring:
        """Make or replace a schedule. It stays paused, and its last run is kept."""
        known = self.schedules.get(name)
        if known is not None:
            made.due, made.paused, made.last = known.due, known.paused, known.last
        self.schedules[name] = made
        return made

    def unschedule(self, name: str) -> bool:
        return self.schedules.pop(name, None) is not None

    def pause_schedule(self, name: str) -> bool:
        """Pause a schedule until it is resumed."""
        return self._turn_schedule(name, paused=True)

    def resume_schedule(self, name: str) -> bool:
        """Resume a schedule. The ticks of the pause are missed ticks."""
        return self._turn_schedule(name, paused=False)

    def _turn_schedule(self, name: str, *, paused: bool) -> bool:
        known = self.schedules.get(name)
        if known is None or known.paused == paused:
            return False
        known.paused = paused
        return True

    def run_schedule(self, name: str, moment: int, id: str) -> None:
        """Enqueue a job of a schedule. Only its last run changes."""
        known = self.schedules[name]
        if self.enqueue(Job(known.payload, id, known.headers)):
            known.last = moment, id

    def tick(self, now: int) -> None:
        """Enqueue the jobs of passed ticks by each schedule's policy. Each tick has one id."""
        for name in self.by_tick():
            known = self.schedules[name]
            if known.paused or known.due > now:
                continue
            ticks = range(known.due, now + 1, known.every)
            known.due = ticks[-1] + known.every
            late = now - ticks[-1] > GRACE
            for moment in {"all": ticks, "once": ticks[-1:], "skip": () if late else ticks[-1:]}[
                known.missed
            ]:
                self.run_schedule(name, moment, f"{name}@{moment}")

    # -- leasing -----------------------------------------------------------------------------------

    def lease(self, worker: str, n: int, *, at_most_once: bool = False) -> list[Held]:
        """Hand out *n* jobs. A job without attempts left, or without a payload, dies on the way."""
        self.alive[worker] = True
        self.promote()
        handed: list[Held] = []
        while len(handed) < n:
            wanted = n - len(handed)
            some = self._hand_out(worker, wanted)
            for held in some:
                if held.job.payload is None:
                    self.dead_letter(held, NO_PAYLOAD)
                    continue
                handed.append(held)
            if len(some) < wanted and (handed or not some):
                break
        for held in handed if at_most_once else ():
            self.complete(held)
        return handed

    def _hand_out(self, worker: str, n: int) -> list[Held]:
        """Hand out one script's worth of jobs, readable or not. A suspect is handed out alone,
        after all others."""
        endless = not self.max_attempts  # without an end, none is a suspect
        if any(
            job.suspect and not endless for job in self.in_state("leased") if job.holder == worker
        ):
            return []
        suspects = [job for job in self.in_state("parked") if job.suspect and not endless]
        others = [job for job in self.waiting() if job not in suspects]
        return self._take(worker, others, n) or self._take(
            worker, sorted(suspects, key=lambda job: job.deaths), 1
        )

    def _take(self, worker: str, jobs: list[Job], n: int) -> list[Held]:
        handed: list[Held] = []
        for job in jobs:
            if len(handed) == n:
                break
            spent = job.deliveries - job.unspent - job.deaths
            if self.max_attempts and (spent >= self.max_attempts or job.deaths >= MOST_DEATHS):
                why = NO_ATTEMPTS + (DIED if job.deaths >= MOST_DEATHS else EXPIRED)
                known = job.reason and not job.reason.startswith(NO_ATTEMPTS[:16])
                self._bury(job, f"{why}; before that: {job.reason}" if known else why, worker)
                continue
            job.deliveries += 1
            if job.level and job.state == "waiting":
                self._move(job, "leased")
            job.state, job.holder = "leased", worker
            handed.append(Held(job, worker, job.place, job.deliveries))
        return handed

    # -- settling ----------------------------------------------------------------------------------

    def complete(self, held: Held, result: bytes | None = None, *, fenced: bool = False) -> bool:
        """Complete a job. The first completer wins. With a fence only the present holder does."""
        if not (self.mine(held) if fenced else self.completable(held)):
            return False
        if result is not None and held.job.id is not None:
            self.results[held.job.id] = result
        self.taken |= {str(held.job.id)} if UNIQUE in held.job.headers else set()
        self._remove([held.job], "completed")
        return True

    def release(self, held: Held) -> bool:
        """Put a job to the front with no attempt spent."""
        if not self.mine(held):
            return False
        held.job.unspent += 1
        self._park(held.job)
        return True

    def retry(self, held: Held, due: float = 0.0, reason: str = "", *, spend: bool = True) -> bool:
        """Put a job to the back or delay it. After its last attempt it is dead."""
        if not self.mine(held):
            return False
        job = held.job
        if spend and self.max_attempts and job.attempt - job.deaths >= self.max_attempts:
            self._bury(job, reason, held.worker)
            return True
        job.unspent += job.deaths + (not spend)
        job.due, job.expired, job.reason = due, False, reason
        self._move(job, "delayed" if due > self.now else "waiting")
        return True

    def dead_letter(self, held: Held, reason: str) -> bool:
        """Remove a job and keep it with its reason."""
        if not self.mine(held):
            return False
        self._bury(held.job, reason, held.worker)
        return True

    def renew(self, held: Held) -> bool:
        """Renew a lease. The client that renews is alive."""
        if not self.mine(held):
            return False
        held.job.expired = False
        self.alive[held.worker] = True
        return True

    # -- a worker's life ---------------------------------------------------------------------------

    def beat(self, worker: str, *, register: bool) -> bool:
        """Record a heartbeat. It fails for a worker that is not registered."""
        if worker not in self.alive and not register:
            return False
        self.alive[worker] = True
        return True

    def reclaim(self, worker: str, *, senior: bool) -> tuple[int, int, int]:
        """Park jobs with expired leases. If *worker* is alive and has been for long (*senior*),
        park the jobs of silent workers too. Return the numbers of parked jobs, of dead workers and
        of due jobs.
        """
        judges = senior and self.alive.get(worker, False)
        silent = [name for name, alive in self.alive.items() if judges and not alive]
        back = [job for job in self.in_state("leased") if job.expired or job.holder in silent]
        for name in silent:
            for job in [job for job in back if job.holder == name]:
                job.deaths += 1
                self._park(job)
            self.alive.pop(name)
        for job in [job for job in back if job.own_term and job.state == "leased"]:
            self._park(job)
        held = Counter(job.holder for job in self.in_state("leased"))
        for job in [job for job in back if job.state == "leased"]:
            # its holder may have died
            job.deaths += held[job.holder] > 1 or not self.alive.get(job.holder, True)
            self._park(job)
        return len(back), len(silent), self.promote()

    def leave(self, worker: str) -> int:
        """Let a worker leave. Its jobs are released."""
        held = [job for job in self.in_state("leased") if job.holder == worker]
        for job in held:
            job.unspent += 1
            self._park(job)
        self.alive.pop(worker, None)
        return len(held)

    # -- the whole queue ---------------------------------------------------------------------------

    def cancel(self, name: str) -> bool:
        """Remove a job, whoever has it."""
        job = self.named(name)
        return job is not None and self._cancel([job]) == 1

    def cancel_payload(self, payload: bytes) -> int:
        """Remove all jobs of a payload but dead ones."""
        return self._cancel(
            [job for job in self.jobs if job.payload == payload and job.state != "dead"]
        )

    def _cancel(self, jobs: list[Job]) -> int:
        self.cancelled |= {job.id for job in jobs if job.id is not None}
        return self._remove(jobs, "cancelled")

    def purge(self) -> int:
        return self._remove(self.in_state("waiting", "parked", "delayed"), "deleted")

    def purge_dead(self, names: Iterable[str] = ()) -> int:
        """Remove all dead letters, or those with the given *names*."""
        return self._remove(self._letters(names), "dead_trimmed")

    def delete(self) -> int:
        """Remove everything."""
        self.schedules.clear()
        self.taken.clear()
        self.cancelled.clear()
        return self._remove(self.jobs, "deleted")

    def redrive(self, names: Iterable[str] = (), payload: bytes | None = None) -> int:
        """Move dead letters to the back, unless their id is taken again. Attempts start anew,
        tokens go on."""
        back = 0
        for job in self._letters(names):
            if job.id is not None and not self.named(job.id):
                job.unspent = job.deliveries
                job.payload = job.payload if payload is None else payload
                self._move(job, "waiting")
                self.cancelled.discard(job.id)
                back += 1
        return back

    def _letters(self, names: Iterable[str]) -> list[Job]:
        wanted = set(names)
        return [job for job in self.in_state("dead") if not wanted or job.id in wanted]
