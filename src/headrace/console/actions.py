"""The actions of pages and terminal. Each calls one verb of a queue, and returns the change that it
made.
"""

from __future__ import annotations

import json
import math
import os
import re
import socket
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, cast

from attrs import asdict, frozen

from headrace import AsyncQueue
from headrace.console.texts import Refused, counted, jobs, signal_data
from headrace.inspect import AsyncInspector
from headrace.platform import HEADERS, LIMITS, VERBS, InnerQueue, Stored, operator_queue

ACTIONS = frozenset(name for name, verb in VERBS.items() if verb.page)
BULK = {name: verb.states for name, verb in VERBS.items() if verb.states}
PER_PAGE = 25  # of a page of a list, and so of an action for ticked rows
STEPS_WITHIN_S = 1.0  # seconds that a bulk action takes before its user is asked to go on


@frozen
class Form:
    fields: Mapping[str, str]
    ticked: tuple[str, ...] | None = None

    def __call__(self, name: str) -> str:
        return self.fields.get(name, "")

    def required(self, name: str) -> str:
        if not self(name):
            raise Refused(f"{name} is missing.")
        return self(name)

    def seconds(self, name: str) -> float | None:
        text = self(name).strip()
        if not text:
            return None
        try:
            seconds = float(text)
        except ValueError:
            seconds = math.nan
        if not math.isfinite(seconds):
            raise Refused(f"{name} {text!r:.50}: give a number of seconds.")
        return seconds

    def count(self, name: str) -> int:
        text = self(name)
        if text and not re.fullmatch(r"[0-9]{1,15}", text):
            raise Refused(f"{name} {text!r:.50}: give a number.")
        return int(text or 0)

    def confirmed(self, queue: str) -> None:
        if self("confirm") != queue:
            raise Refused(f"Type the queue's name, {queue}, to confirm. Nothing was done.")


def is_internal(header: str) -> bool:
    of_tracers = ("traceparent", "tracestate", "baggage")
    return header.startswith(HEADERS.reserved) or header in of_tracers


@frozen
class ActionRequest:
    queue: AsyncQueue[Any]
    form: Form
    inspector: AsyncInspector


Outcome = tuple[int, str]  # the number of jobs, and a text for the user


async def _enqueue(request: ActionRequest) -> Outcome:
    if request.form("again"):
        return await _enqueue_again(request, request.form("again"))
    form = request.form
    receipt = await request.queue.enqueue(
        form("payload"),
        id=form("id") or None,
        delay=form.seconds("delay"),
        priority=int(form.seconds("priority") or 0),
    )
    return int(
        receipt.added
    ), f"Job {receipt.id} was {'enqueued' if receipt.added else 'there already'}."


async def _enqueue_again(request: ActionRequest, id: str) -> Outcome:
    """Add a job with the headers, priority, key and cost of another. Its payload is the other's,
    unless one is typed.
    """
    found = await request.queue.find(id)
    if found is None or found.job.payload is None:
        raise Refused(f"The payload of {id!r:.100} is not known any more. Nothing was done.")
    job = found.job
    payload = cast("str | Stored", Stored(found.job.payload, job.id))
    if HEADERS.flow in job.headers:
        raise Refused("This is a job of a flow: start another run of the flow. Nothing was done.")
    if "payload" in request.form.fields:
        text = request.form("payload").replace("\r\n", "\n")  # browsers send each line end as CRLF
        shown = await request.inspector.job(request.queue.name, id)
        payload = payload if shown is None or text == shown.payload.text else text
    headers = {name: value for name, value in job.headers.items() if not is_internal(name)}
    options: dict[str, Any] = {
        "key": job.key,
        "cost": job.cost,
        "priority": job.priority,
        "headers": headers,
    }
    receipt = await request.queue.enqueue(payload, id=request.form("id") or None, **options)
    return int(
        receipt.added
    ), f"Job {receipt.id} was {'enqueued' if receipt.added else 'there already'}."


async def _reschedule(request: ActionRequest) -> Outcome:
    done = await request.queue.admin.reschedule(
        request.form.required("id"), request.form.seconds("delay")
    )
    return int(
        done
    ), "The job has another due time." if done else "The job is not delayed any more."


SIGNALLED = {
    "woke": "The job goes on.",
    "kept": "The signal is kept until the job waits for it.",
    "present": "The job has this signal already.",
    "unknown": "The job is not there any more, or its wait has timed out.",
}


async def _signal(request: ActionRequest) -> Outcome:
    data = request.form("data")
    sent = signal_data(data) if data else None
    job_id = request.form.required("id")
    name = request.form.required("signal")
    answer = await request.queue.signal(
        job_id, name, sent, by=f"an operator at {socket.gethostname()[:100]}:{os.getpid()}"
    )
    return int(answer in ("woke", "kept")), SIGNALLED[answer]


async def _letters(request: ActionRequest) -> list[str]:
    if request.form("id"):
        return [request.form("id")]
    if not request.form("group"):
        return []
    ids = list(
        dict.fromkeys(await request.inspector.dead_ids(request.queue.name, request.form("group")))
    )
    if not ids:
        raise Refused("There is no such dead letter any more. Nothing was done.")
    return ids


async def _redrive(request: ActionRequest) -> Outcome:
    typed = request.form.fields.get("payload")
    # browsers send each line end as CRLF
    payload = None if typed is None else typed.replace("\r\n", "\n")
    chosen = await _letters(request)
    if payload is None:
        step = request.form("step")
        number = await request.queue.admin.redrive(*chosen, from_step=step or None)
        return (
            number,
            f"{jobs(number)} went back to the queue{f', and begins again at {step}' if step else ''}.",
        )
    name = request.form.required("id")
    if not await request.queue.admin.redrive(name, payload=payload):
        raise Refused(
            f"{name!r:.100} is no dead letter any more, or its id is taken again. Nothing was done."
        )
    return 1, "1 job went back to the queue, with another payload."


async def _purge_dead(request: ActionRequest) -> Outcome:
    number = await request.queue.admin.purge_dead(*await _letters(request))
    return number, f"{counted(number, 'dead letter')} removed."


async def _schedule(request: ActionRequest) -> Outcome:
    form = request.form
    name = form.required("name")
    found = await InnerQueue(request.queue).schedule(name)
    if found is None:
        raise Refused(f"There is no schedule {name!r:.100} any more. Nothing was done.")
    job = found[1].job
    every = form.seconds("every")
    cron = form("cron").strip() or None
    if (every is None) == (cron is None):
        raise Refused("Give seconds or a cron expression, one of the two.")
    zone = form("timezone").strip() or None if cron else None
    payload = job.payload
    shown = await request.inspector.schedule(request.queue.name, name)
    typed = form.fields.get("payload", "").replace("\r\n", "\n")
    if "payload" in form.fields and (shown is None or typed != shown.payload.text):
        payload = typed
    cost = job.cost if HEADERS.cost in job.headers else None
    await request.queue.admin.schedule(
        name,
        payload,
        every=every,
        cron=cron,
        timezone=zone,
        missed=form("missed") or "once",
        headers=job.headers,
        priority=job.priority,
        cost=cost,
    )
    return 1, "The schedule was changed."


async def _run_schedule(request: ActionRequest) -> Outcome:
    job = await request.queue.admin.run_schedule(request.form.required("name"))
    return int(
        job is not None
    ), f"Job {job} was enqueued." if job else "There is no such schedule any more."


async def _repair(request: ActionRequest) -> Outcome:
    shown = bool(request.form("show"))
    found = await request.queue.admin.repair(dry_run=shown)
    kinds = ", ".join(
        f"{number} {kind.replace('_', ' ')}" for kind, number in asdict(found).items() if number
    )
    if not found:
        return 0, "There is nothing to mend." if shown else "There was nothing to mend."
    return (
        found.total,
        f"To be mended: {kinds}. Nothing was changed yet." if shown else f"Mended: {kinds}.",
    )


@frozen
class Call:
    """An action that is one call of a verb, with at most one `field` of the form as its argument.

    Its texts are for a change, and for none. They may name the `{queue}`, and the number of
    `{jobs}`.
    """

    verb: str
    field: str
    changed: str
    unchanged: str

    async def __call__(self, request: ActionRequest) -> Outcome:
        owner = request.queue if self.verb == "cancel" else request.queue.admin
        arguments = [request.form.required(self.field)] if self.field else []
        done: bool | int = await getattr(owner, self.verb)(*arguments)
        text = self.changed if done else self.unchanged
        return int(done), text.format(queue=request.queue.name, jobs=jobs(int(done)))


async def _pause(request: ActionRequest) -> Outcome:
    value = _value_of(request.form)
    if value is None:
        done = await request.queue.admin.pause()
        return int(done), "The queue is paused." if done else "The queue was paused already."
    done = await request.queue.admin.pause(value=value)
    name = "/".join(part or "-" for part in value)
    return int(done), f"{name} is paused." if done else f"{name} was paused already."


async def _resume(request: ActionRequest) -> Outcome:
    value = _value_of(request.form)
    if value is None:
        done = await request.queue.admin.resume()
        return int(done), "Jobs are handed out again." if done else "The queue was not paused."
    done = await request.queue.admin.resume(value=value)
    name = "/".join(part or "-" for part in value)
    return int(done), f"Jobs of {name} are handed out again." if done else f"{name} was not paused."


def _value_of(form: Form) -> tuple[str | None, ...] | None:
    if not form("value"):
        return None
    try:
        parts = json.loads(form("value"))
    except ValueError:
        parts = None
    if not isinstance(parts, list):
        raise Refused("value can't be read: give a JSON array.")
    some: list[Any] = parts  # pyright: ignore[reportUnknownVariableType]
    if not all(part is None or isinstance(part, str) for part in some):
        raise Refused("value can't be read: give texts, or null.")
    return tuple(some)


async def _set_concurrency(request: ActionRequest) -> Outcome:
    reset = request.form("reset") or request.form("concurrency") == "code"
    number = None if reset else request.form.count("concurrency")
    await request.queue.admin.set_concurrency(number)
    many = "as many handlers at once as its code says" if number is None else f"{number} at once"
    return 1, f"Each worker runs {many}, in a few seconds."


PURGED = "{jobs} that waited were removed."
DELETED = "Queue {queue} was deleted, with {jobs}."
FAILED = "The worker counts as dead here; {jobs} of it went to the front."
GONE = "The worker is not there any more."
SINGLE = (
    Call("cancel", "id", "The job was cancelled.", "The job is not there any more, or dead."),
    Call(
        "expire",
        "id",
        "Its lease was ended: the job is in front.",
        "The job is not leased any more.",
    ),
    Call("unschedule", "name", "The schedule was removed.", "There is no such schedule any more."),
    Call(
        "pause_schedule",
        "name",
        "The schedule is paused.",
        "The schedule was paused already, or is gone.",
    ),
    Call(
        "resume_schedule",
        "name",
        "The schedule goes on.",
        "The schedule was not paused, or is gone.",
    ),
    Call("quiet_worker", "worker", "The worker leases no more jobs of this queue.", GONE),
    Call("resume_worker", "worker", "The worker leases jobs of this queue again.", GONE),
    Call(
        "stop_worker",
        "worker",
        "The worker stops, once it has finished the jobs that it runs.",
        GONE,
    ),
    Call("purge", "", PURGED, PURGED),
    Call("delete", "", DELETED, DELETED),
    Call("fail_worker", "worker", FAILED, FAILED),
)
Action = Callable[[ActionRequest], Awaitable[Outcome]]
CALLS: Mapping[str, Action] = {one.verb: one for one in SINGLE} | {
    "enqueue": _enqueue,
    "reschedule": _reschedule,
    "signal": _signal,
    "redrive": _redrive,
    "purge_dead": _purge_dead,
    "schedule": _schedule,
    "run_schedule": _run_schedule,
    "repair": _repair,
    "pause": _pause,
    "resume": _resume,
    "set_concurrency": _set_concurrency,
}


@frozen
class Button:
    page: str
    text: str
    note: str = ""


BUTTONS = {
    "repair": Button("queue", "Repair"),
    "purge": Button("queue", "Purge", "Removes the jobs that wait or are delayed."),
    "delete": Button("queue", "Delete the queue", "Removes the queue with everything in it."),
    "quiet_worker": Button(
        "worker", "Quiet", "It leases no more jobs of this queue, and finishes its running jobs."
    ),
    "resume_worker": Button("worker", "Resume"),
    "stop_worker": Button(
        "worker", "Stop its program", "It finishes its jobs, of all queues, and ends."
    ),
    "fail_worker": Button(
        "worker",
        "Declare it dead",
        "A worker that counts as dead loses its leases, and comes back if it lives.",
    ),
}
BULK_TEXTS = {  # on the button, and of the jobs after it
    "cancel": ("Cancel all that match", "were cancelled"),
    "expire": ("End the leases of all that match", "had their leases ended"),
    "reschedule": ("Make all that match due at once", "are due at once"),
    "redrive": ("Redrive all that match", "went back to the queue"),
    "purge_dead": ("Remove all that match for good", "were removed"),
}


async def _bulk(queue: AsyncQueue[Any], action: str, form: Form) -> tuple[int, str, dict[str, str]]:
    """Take an action for all jobs of a state that match, for about a second.

    Return the number of jobs, a text on all steps so far, and the fields that go on with it. At the
    end there are no fields.
    """
    end = time.monotonic() + STEPS_WITHIN_S
    texts = {name: form(name) for name in ("reason", "kind", "group")}
    looked, matched, done = map(form.count, ("looked", "matched", "done"))
    cursor, now = form("cursor"), 0
    while True:
        step = await queue.admin.bulk(action, form("state"), **texts, cursor=cursor)
        looked, matched, cursor, now = (
            looked + step.looked,
            matched + step.matched,
            step.cursor,
            now + step.done,
        )
        if not cursor or time.monotonic() > end:
            break
    done += now
    onward: dict[str, str] = {}
    # other queues, which have the same cause of death
    following, _, rest = form("rest").partition(" ")
    if cursor or following:
        onward = {
            "action": action,
            "state": form("state"),
            "cursor": cursor,
            "confirm": form("confirm"),
        }
        onward |= texts | {"looked": str(looked), "matched": str(matched), "done": str(done)}
        onward |= {"rest": form("rest"), "within": form("within"), "total": form("total")}
        if not cursor:
            onward |= {"name": following, "rest": rest, "confirm": ""}
    which = "; ".join(
        f"{name} {text!r}" for name, text in texts.items() if text and name != "group"
    )
    rest = f"{f' ({which})' if which else ''}{', and it goes on' if onward else ''}"
    return (
        now,
        f"{done:,} of {matched:,} {BULK_TEXTS[action][1]}, of {jobs(looked)} that were looked at{rest}.",
        onward,
    )


TICKED_TEXTS = {  # on the button, and of a job that is not done
    "cancel": ("Cancel", "not there any more, or dead"),
    "purge_dead": ("Remove", "not dead any more"),
    "redrive": ("Redrive", "not dead any more, or its id is taken again"),
}


async def _ticked(queue: AsyncQueue[Any], action: str, ticked: Sequence[str]) -> Outcome:
    if action == "cancel":
        done = sum([await queue.cancel(one) for one in ticked])
    else:
        done = await getattr(queue.admin, action)(*ticked)
    gone = len(ticked) - done
    text = f"{done:,} of {len(ticked):,} {BULK_TEXTS[action][1]}."
    if gone:
        text += f" {gone:,} {'was' if gone == 1 else 'were'} {TICKED_TEXTS[action][1]}."
    return done, text


def _checked(action: str, form: Form) -> tuple[str, ...]:
    """Return the ids of the rows that were ticked, each once. Raises `Refused` for none, as none
    must never mean all jobs.
    """
    ticked = tuple(dict.fromkeys(form.ticked or ()))
    if action not in TICKED_TEXTS or not 0 < len(ticked) <= PER_PAGE or "" in ticked:
        raise Refused(
            f"Tick 1 to {PER_PAGE} rows, and press a button below them. Nothing was done."
        )
    return ticked


async def act(
    inspector: AsyncInspector,
    server: Mapping[str, Any],
    namespace: str,
    action: str,
    name: str,
    form: Form,
) -> tuple[int, str, dict[str, str]]:
    """Take an action in the queue *name* on *server* (`url` or `client`). Return the number of
    jobs, a text about the action, and the fields that go on with a bulk action.

    Raises `Refused`, redis-py's errors, and the verb's own errors.
    """
    verb = VERBS[action]
    ticked = None if form.ticked is None else _checked(action, form)
    if verb.final and (verb.asks == "always" or ticked or form("state") or not form("id")):
        form.confirmed(name)
    view = (await inspector.queue(name)).queue
    # a level may have had no job yet
    levels = LIMITS.levels if action == "schedule" else view.levels
    options: dict[str, Any] = {
        "priorities": levels,
        "timeout": 10.0,  # seconds for which a round trip is tried
        "namespace": namespace,
    }
    queue = operator_queue(inspector, name, **server, **options, shards=max(1, len(view.shards)))
    try:
        if ticked:
            return *(await _ticked(queue, action, ticked)), {}
        if form("state") and verb.states:
            return await _bulk(queue, action, form)
        return *(await CALLS[action](ActionRequest(queue, form, inspector))), {}
    finally:
        inspector.forget()
        await queue.close()
