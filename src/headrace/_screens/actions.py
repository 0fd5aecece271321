"""Actions: what changes something, each one verb of a queue, answered with what has really happened."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from attrs import asdict, frozen

from headrace._async.inspector import AsyncInspector
from headrace._async.queue import AsyncQueue
from headrace._screens.texts import counted, jobs

CALL_WITHIN_S = 10.0  # seconds for which a round trip of an action is tried


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
            return float(text)
        except ValueError:
            raise Refused(f"{name} {text!r:.50}: give a number of seconds.") from None

    def confirmed(self, queue: str) -> None:
        """Check that the queue's name was typed, as for what can't be undone."""
        if self("confirm") != queue:
            raise Refused(f"Type the queue's name, {queue}, to confirm. Nothing was done.")


@frozen
class Deed:
    """An action that was asked for: its queue, its form, and the reader."""

    queue: AsyncQueue[Any]
    form: Form
    look: AsyncInspector


async def pause(deed: Deed) -> tuple[int, str]:
    """Hand out no more jobs."""
    done = await deed.queue.pause()
    return int(done), "The queue is paused." if done else "The queue was paused already."


async def resume(deed: Deed) -> tuple[int, str]:
    """Hand out jobs again."""
    done = await deed.queue.resume()
    return int(done), "Jobs are handed out again." if done else "The queue was not paused."


async def enqueue(deed: Deed) -> tuple[int, str]:
    """Add a job, its payload as it is typed: bytes in UTF-8."""
    delay, level = deed.form.number("delay"), int(deed.form.number("priority") or 0)
    named = deed.form("id") or None
    receipt = await deed.queue.enqueue(deed.form("payload"), id=named, delay=delay, priority=level)
    return int(receipt.added), f"Job {receipt.id} was {'enqueued' if receipt.added else 'there already'}."


async def cancel(deed: Deed) -> tuple[int, str]:
    """Remove one job that waits, runs or is delayed."""
    done = await deed.queue.cancel(deed.form.needed("id"))
    return int(done), "The job was cancelled." if done else "The job is not there any more, or dead."


async def expire(deed: Deed) -> tuple[int, str]:
    """End the lease of one job."""
    done = await deed.queue.expire(deed.form.needed("id"))
    return done, "Its lease was ended: the job is in front." if done else "The job is not leased any more."


async def reschedule(deed: Deed) -> tuple[int, str]:
    """Give a delayed job another due time."""
    done = await deed.queue.reschedule(deed.form.needed("id"), deed.form.number("delay"))
    return int(done), "The job has another due time." if done else "The job is not delayed any more."


async def _letters(deed: Deed) -> list[str]:
    """Return the ids of the dead letters that are meant: one, those of a group, or none for all."""
    if deed.form("id"):
        return [deed.form("id")]
    if not deed.form("group"):
        return []
    ids = list(dict.fromkeys(await deed.look.dead_ids(deed.queue.name, deed.form("group"))))
    if not ids:
        raise Refused("There is no such dead letter any more. Nothing was done.")
    return ids


async def redrive(deed: Deed) -> tuple[int, str]:
    """Send dead letters back to the queue: one, those of a reason, or all."""
    number = await deed.queue.redrive(*await _letters(deed))
    return number, f"{jobs(number)} went back to the queue."


async def purge_dead(deed: Deed) -> tuple[int, str]:
    """Remove dead letters for good: one, those of a reason, or all."""
    if not deed.form("id"):
        deed.form.confirmed(deed.queue.name)
    number = await deed.queue.purge_dead(*await _letters(deed))
    return number, f"{counted(number, 'dead letter')} removed."


async def purge(deed: Deed) -> tuple[int, str]:
    """Remove the jobs that wait."""
    deed.form.confirmed(deed.queue.name)
    number = await deed.queue.purge()
    return number, f"{jobs(number)} that waited were removed."


async def delete(deed: Deed) -> tuple[int, str]:
    """Remove the queue with everything in it."""
    deed.form.confirmed(deed.queue.name)
    number = await deed.queue.delete()
    return number, f"Queue {deed.queue.name} was deleted, with {jobs(number)}."


async def fail_worker(deed: Deed) -> tuple[int, str]:
    """Declare a worker dead."""
    number = await deed.queue.fail_worker(deed.form.needed("worker"))
    return number, f"The worker counts as dead here; {jobs(number)} of it went to the front."


async def repair(deed: Deed) -> tuple[int, str]:
    """Mend what foreign commands broke."""
    found = await deed.queue.repair()
    kinds = ", ".join(f"{number} {kind.replace('_', ' ')}" for kind, number in asdict(found).items() if number)
    return found.total, f"Mended: {kinds}." if found else "There was nothing to mend."


Act = Callable[[Deed], Awaitable[tuple[int, str]]]
ACTS: dict[str, Act] = {
    "cancel": cancel, "delete": delete, "enqueue": enqueue, "expire": expire, "fail_worker": fail_worker,
    "pause": pause, "purge": purge, "purge_dead": purge_dead, "redrive": redrive, "repair": repair,
    "reschedule": reschedule, "resume": resume,
}  # fmt: skip


async def act(
    look: AsyncInspector, server: Mapping[str, Any], namespace: str, action: str, name: str, form: Form
) -> tuple[int, str]:
    """Take an action in the queue *name* on *server* (`url` or `client`): how many, and what has happened.

    Raises `Refused`, redis-py's errors, and what the verb raises.
    """
    levels = (await look.queue(name)).queue.levels
    options: dict[str, Any] = {"priorities": levels, "timeout": CALL_WITHIN_S, "namespace": namespace}
    queue: AsyncQueue[Any] = AsyncQueue(name, **server, **options)
    queue._undeclared = False  # noqa: SLF001 # pyright: ignore[reportPrivateUsage] - we declare nothing
    try:
        return await ACTS[action](Deed(queue, form, look))
    finally:
        look.forget()
        await queue.close()
