"""Actions: each is one verb of a queue, and its answer is the change that was made."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from attrs import asdict, field, frozen

from headrace._api.aio.inspector import AsyncInspector
from headrace._api.aio.queue import AsyncQueue
from headrace._model.verbs import ACTIONS, VERBS
from headrace._ui.texts import counted, jobs

CALL_WITHIN_S = 10.0  # seconds for which a round trip of an action is tried
STEPS_WITHIN_S = 1.0  # seconds for which a bulk action goes on before it is asked to


class Refused(ValueError):
    """A form that asks for nothing that can be done; its text says why."""


@frozen
class Form:
    """The fields of a form: each once, as text."""

    fields: Mapping[str, str]

    def __call__(self, name: str) -> str:
        """Return a field; '' if it is missing."""
        return self.fields.get(name, "")

    def needed(self, name: str) -> str:
        """Return a field that must not be empty."""
        if not self(name):
            raise Refused(f"{name} is missing.")
        return self(name)

    def number(self, name: str) -> float | None:
        """Return a field as seconds; `None` if it is empty."""
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

    def whole(self, name: str) -> int:
        """Return a field that counts, at most as large as any queue; 0 if it is empty."""
        text = self(name)
        if text and not re.fullmatch(r"[0-9]{1,15}", text):
            raise Refused(f"{name} {text!r:.50}: give a number.")
        return int(text or 0)

    def confirmed(self, queue: str) -> None:
        """Check that the queue's name was typed, as for actions that can't be undone."""
        if self("confirm") != queue:
            raise Refused(f"Type the queue's name, {queue}, to confirm. Nothing was done.")


@frozen
class ActionRequest:
    """An action that was asked for: its queue, its form, and the reader."""

    queue: AsyncQueue[Any]
    form: Form
    look: AsyncInspector

    onward: dict[str, str] = field(factory=dict[str, str])
    """The place where a bulk action goes on, and how far it has come; empty at its end."""

    @property
    def all_matching(self) -> bool:
        """Whether all jobs in a state are meant that match, instead of one."""
        return bool(self.form("state"))


async def _bulk(request: ActionRequest, action: str, what: str) -> tuple[int, str]:
    """Take an action for all that match, for a second; say how far it has come since it began."""
    form, end = request.form, time.monotonic() + STEPS_WITHIN_S
    texts = {name: form(name) for name in ("reason", "kind")}
    looked, matched, done = map(form.whole, ("looked", "matched", "done"))
    cursor, now = form("cursor"), 0
    while True:
        step = await request.queue.admin.bulk(action, form("state"), **texts, cursor=cursor)
        looked, matched, cursor, now = looked + step.looked, matched + step.matched, step.cursor, now + step.done
        if not cursor or time.monotonic() > end:
            break
    done += now
    if cursor:
        more = texts | {"looked": str(looked), "matched": str(matched), "done": str(done)}
        request.onward.update(action=action, state=form("state"), cursor=cursor, confirm=form("confirm"), **more)
    which = "; ".join(f"{name} {text!r}" for name, text in texts.items() if text)
    rest = f"{f' ({which})' if which else ''}{', and it goes on' if cursor else ''}"
    return now, f"{done:,} of {matched:,} {what}, of {jobs(looked)} that were looked at{rest}."


async def pause(request: ActionRequest) -> tuple[int, str]:
    """Hand out no more jobs."""
    done = await request.queue.admin.pause()
    return int(done), "The queue is paused." if done else "The queue was paused already."


async def resume(request: ActionRequest) -> tuple[int, str]:
    """Hand out jobs again."""
    done = await request.queue.admin.resume()
    return int(done), "Jobs are handed out again." if done else "The queue was not paused."


async def enqueue(request: ActionRequest) -> tuple[int, str]:
    """Add a job, its payload as it is typed: bytes in UTF-8."""
    delay, level = request.form.number("delay"), int(request.form.number("priority") or 0)
    named = request.form("id") or None
    receipt = await request.queue.enqueue(request.form("payload"), id=named, delay=delay, priority=level)
    return int(receipt.added), f"Job {receipt.id} was {'enqueued' if receipt.added else 'there already'}."


async def cancel(request: ActionRequest) -> tuple[int, str]:
    """Remove one job that waits, runs or is delayed, or all in one of these states that match."""
    if request.all_matching:
        return await _bulk(request, "cancel", "were cancelled")
    done = await request.queue.cancel(request.form.needed("id"))
    return int(done), "The job was cancelled." if done else "The job is not there any more, or dead."


async def expire(request: ActionRequest) -> tuple[int, str]:
    """End the lease of one job, or the leases of all that match."""
    if request.all_matching:
        return await _bulk(request, "expire", "had their leases ended")
    done = await request.queue.admin.expire(request.form.needed("id"))
    return done, "Its lease was ended: the job is in front." if done else "The job is not leased any more."


async def reschedule(request: ActionRequest) -> tuple[int, str]:
    """Give a delayed job another due time; all that match are due at once."""
    if request.all_matching:
        return await _bulk(request, "reschedule", "are due at once")
    done = await request.queue.admin.reschedule(request.form.needed("id"), request.form.number("delay"))
    return int(done), "The job has another due time." if done else "The job is not delayed any more."


async def _letters(request: ActionRequest) -> list[str]:
    """Return the ids of the chosen dead letters: one, a group, or none for all."""
    if request.form("id"):
        return [request.form("id")]
    if not request.form("group"):
        return []
    ids = list(dict.fromkeys(await request.look.dead_ids(request.queue.name, request.form("group"))))
    if not ids:
        raise Refused("There is no such dead letter any more. Nothing was done.")
    return ids


async def redrive(request: ActionRequest) -> tuple[int, str]:
    """Send dead letters back to the queue: one, all of a reason, all, or all that match."""
    if request.all_matching:
        return await _bulk(request, "redrive", "went back to the queue")
    number = await request.queue.admin.redrive(*await _letters(request))
    return number, f"{jobs(number)} went back to the queue."


async def purge_dead(request: ActionRequest) -> tuple[int, str]:
    """Remove dead letters for good: one, all of a reason, all, or all that match."""
    if request.all_matching:
        return await _bulk(request, "purge_dead", "were removed")
    number = await request.queue.admin.purge_dead(*await _letters(request))
    return number, f"{counted(number, 'dead letter')} removed."


async def purge(request: ActionRequest) -> tuple[int, str]:
    """Remove the jobs that wait."""
    number = await request.queue.admin.purge()
    return number, f"{jobs(number)} that waited were removed."


async def delete(request: ActionRequest) -> tuple[int, str]:
    """Remove the queue with everything in it."""
    number = await request.queue.admin.delete()
    return number, f"Queue {request.queue.name} was deleted, with {jobs(number)}."


async def fail_worker(request: ActionRequest) -> tuple[int, str]:
    """Declare a worker dead."""
    number = await request.queue.admin.fail_worker(request.form.needed("worker"))
    return number, f"The worker counts as dead here; {jobs(number)} of it went to the front."


async def repair(request: ActionRequest) -> tuple[int, str]:
    """Repair damage by foreign commands."""
    found = await request.queue.admin.repair()
    kinds = ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in asdict(found).items() if number)
    return found.total, f"Mended: {kinds}." if found else "There was nothing to mend."


Action = Callable[[ActionRequest], Awaitable[tuple[int, str]]]
CALLS: dict[str, Action] = {name: globals()[name] for name in ACTIONS}


async def act(
    look: AsyncInspector, server: Mapping[str, Any], namespace: str, action: str, name: str, form: Form
) -> tuple[int, str, Mapping[str, str]]:
    """Take an action in the queue *name* on *server* (`url` or `client`). Return the number of jobs, a text about the
    action, and the cursor of a bulk action.

    Raises `Refused`, redis-py's errors, and the verb's own errors.
    """
    verb = VERBS[action]
    if verb.final and (verb.asks == "always" or form("state") or not form("id")):
        form.confirmed(name)
    view = (await look.queue(name)).queue
    options: dict[str, Any] = {"priorities": view.levels, "timeout": CALL_WITHIN_S, "namespace": namespace}
    options["shards"] = max(1, len(view.shards))
    queue: AsyncQueue[Any] = AsyncQueue(name, **server, **options)
    queue._undeclared = False  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - we declare nothing
    try:
        request = ActionRequest(queue, form, look)
        return *(await CALLS[action](request)), request.onward
    finally:
        look.forget()
        await queue.close()
