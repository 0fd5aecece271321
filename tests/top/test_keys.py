"""The keys of `headrace top`. Capital letters ask first, and the outcome is shown."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import redis

from headrace import Job, Queue, Worker
from headrace.errors import RunSuspended
from headrace.inspect import AsyncInspector, WorkerState
from tests.support.awaiting import until
from tests.support.servers import Server
from tests.support.steps import viewing
from tests.top.conftest import Screen

Tell = Callable[..., None]


def bury(queue: Queue, *ids: str, reason: str = "why") -> None:
    for one in ids:
        queue.enqueue(b"x", id=one)
        queue.lease().dead_letter(reason)


def test_pause_and_resume(tell: Tell, queue: Queue) -> None:
    queue.enqueue(b"x")

    async def story(screen: Screen) -> None:
        await screen.shows("emails")
        await screen.press("p")
        await screen.shows("The queue is paused.", "paused")
        assert queue.admin.paused()
        await screen.press("p")
        await screen.shows("Jobs are handed out again.")
        assert not queue.admin.paused()

    tell(story)


def test_nothing_is_destroyed_unasked(tell: Tell, queue: Queue) -> None:
    """Any key but y is no."""
    bury(queue, "d1", "d2")
    queue.enqueue_many([b"x"] * 3)

    async def story(screen: Screen) -> None:
        await screen.shows("emails", " 2 ")
        for key, words in {
            "P": "Purge emails: remove 3 jobs", "R": "Redrive emails: send 2 dead letters back",
            "X": "Remove 2 dead letters of emails", "D": "Delete emails, with 5 jobs",
        }.items():  # fmt: skip
            await screen.press(key)
            await screen.shows(words)
            await screen.press("escape" if key == "D" else "n")
            await screen.shows("Nothing was done.")
        assert (queue.counts().waiting, queue.counts().dead) == (3, 2)
        await screen.press("P")
        await screen.shows("Purge emails")
        await screen.press("y")
        await screen.shows("3 jobs that waited were removed.")
        await screen.press("R")
        await screen.shows("Redrive emails")
        await screen.press("y")
        await screen.shows("2 jobs went back to the queue.")
        assert (queue.counts().waiting, queue.counts().dead) == (2, 0)
        await screen.press("X")
        await screen.shows("There is nothing here to do that with.")

    tell(story)


def test_concurrency(tell: Tell, queue: Queue, newest: Server) -> None:
    """It asks how many, and takes no text that is no number. `code` takes it back."""
    queue.enqueue(b"x")

    def said() -> str | None:
        with newest.client() as client:
            return client.hget(queue.ops.keys.key("stats"), "concurrency")  # type: ignore[return-value]

    async def story(screen: Screen) -> None:
        await screen.shows("emails")
        for typed, words in {
            "3": "Each worker runs 3 at once", "many": "concurrency", "code": "as its code says",
        }.items():  # fmt: skip
            await screen.press("c")
            await screen.shows("How many handlers each worker of emails")
            await screen.types(typed)
            await screen.shows(words, without="How many handlers")
            assert bool(said()) is (typed != "code")
        await screen.press("c")
        await screen.shows("How many handlers")
        await screen.press("escape")
        await screen.shows("Nothing was done.")

    tell(story)


def test_a_signal_is_sent(tell: Tell, queue: Queue) -> None:
    queue.enqueue(b"x", id="a")
    with pytest.raises(RunSuspended):
        queue.lease().job.wait_for("go")

    async def story(screen: Screen) -> None:
        await screen.press("f")
        await screen.types("a")
        await screen.shows("Waits for the signal go")
        await screen.press("i")
        await screen.shows("Data of the signal go")
        await screen.types('{"yes":1}')
        await screen.shows("The job goes on", without="Waits for the signal")
        await screen.press("i")
        await screen.shows("There is nothing here to do that with.")

    tell(story)
    assert queue.lease().job.wait_for("go") is not None


def test_namespaces(tell: Tell, queue: Queue, newest: Server) -> None:
    """A key goes from one namespace to the next, and actions act in the one that is shown."""
    queue.enqueue(b"x")
    with Queue("bills", url=newest.url, namespace="other") as other:
        other.enqueue(b"x")

        async def story(screen: Screen) -> None:
            await screen.shows("headrace · queues", "emails")
            await screen.press("t")
            await screen.shows("There is one namespace")
            async with AsyncInspector(url=newest.url, namespace="other", fresh=0.0) as second:
                screen.top._inspectors["other"] = second
                await screen.press("t")
                await screen.shows("headrace · other · queues", "bills", without="emails")
                await screen.press("p")
                await screen.shows("The queue is paused.")
                await screen.press("t")
                await screen.shows("headrace · headrace · queues", "emails", without="bills")

        tell(story)
        assert other.admin.paused()


def test_delete_wants_the_name(tell: Tell, queue: Queue) -> None:
    queue.enqueue(b"x")

    async def story(screen: Screen) -> None:
        await screen.shows("emails")
        await screen.press("D")
        await screen.shows("Type emails to confirm:")
        await screen.types("email")
        await screen.shows("Nothing was done.")
        assert queue.counts().waiting == 1
        await screen.press("D")
        await screen.shows("Type emails")
        await screen.types("emails")
        await screen.shows("Queue emails was deleted, with 1 job.")
        assert queue.counts().present == 0

    tell(story)


def test_jobs(tell: Tell, queue: Queue) -> None:
    """Jobs under the cursor are cancelled or their leases ended, from a list or from their own
    pane."""
    for one in ("a", "b", "c"):
        queue.enqueue(b"x", id=one)
    queue.lease()

    async def story(screen: Screen) -> None:
        await screen.press("enter")
        await screen.shows("[waiting]", "b ", "c ")
        await screen.press("E")
        await screen.shows("There is nothing here to do that with.")
        await screen.press("down", "C")
        await screen.shows("Cancel job c of emails?")
        await screen.press("y")
        await screen.shows("The job was cancelled.")
        await screen.press("s")
        await screen.shows("[running]", "took")
        await screen.press("enter")
        await screen.shows("held by")
        await screen.press("E")
        await screen.shows("End the lease of job a of emails?")
        await screen.press("y")
        await screen.shows("Its lease was ended", "parked")

    tell(story)
    assert [state.job.id for state in queue.admin.waiting()] == ["a", "b"]


def test_dead_letters_of_one_reason(tell: Tell, queue: Queue) -> None:
    bury(queue, "d", reason="no such user")
    bury(queue, "a", "b", "c", reason="timeout after 3 s")

    async def story(screen: Screen) -> None:
        await screen.press("3")
        await screen.shows("4 dead letters in 1 queue", "emails")
        await screen.press("enter")
        await screen.shows("timeout after 3 s", "no such user")
        await screen.press("R")
        await screen.shows("Send back to the queue 3 dead letters: timeout after 3 s")
        await screen.press("y")
        await screen.shows("3 jobs went back to the queue.", without="timeout after")
        await screen.press("X")
        await screen.shows("Remove for good 1 dead letter: no such user")
        await screen.press("y")
        await screen.shows("1 dead letter removed.")

    tell(story)
    assert (queue.counts().waiting, queue.counts().dead) == (3, 0)


def test_a_worker_is_failed(tell: Tell, queue: Queue) -> None:
    queue.enqueue(b"x", id="a")
    queue.lease()

    async def story(screen: Screen) -> None:
        await screen.press("2")
        await screen.shows("1 of 1 workers alive")
        await screen.press("F")
        await screen.shows("dead in emails?")
        await screen.press("y")
        await screen.shows("The worker counts as dead here; 1 job of it went to the front.")

    tell(story)
    assert queue.counts().parked == 1


def test_a_worker_is_asked(tell: Tell, queue: Queue, newest: Server) -> None:
    """A worker is asked to be quiet, to resume, and to stop. The last asks first. The worker's
    facts are shown."""
    worker = Worker(url=newest.url)

    @worker.handler("emails", concurrency=7)
    def handle(job: Job) -> None: ...

    async def story(screen: Screen) -> None:
        await screen.press("2")
        await screen.shows("1 of 1 workers alive", "0 of 7", "MiB", "alive ")
        await screen.press("u")
        await screen.shows("The worker leases no more jobs of this queue.", "quiet ")
        await screen.press("enter")
        await screen.shows("quiet since", f"process {os.getpid()}", "Python")
        await screen.press("u")
        await screen.shows("The worker leases jobs of this queue again.", "alive since")
        await screen.press("S")
        await screen.shows("Stop the program of")
        await screen.press("n")
        await screen.shows("Nothing was done.")

    with worker:
        until(
            lambda: [one for one in queue.admin.workers() if one.facts], "the worker has reported"
        )
        tell(story)


def test_a_program_of_several_queues_is_asked(tell: Tell, queue: Queue, newest: Server) -> None:
    """The program is one row. It is stopped there, and made quiet in one queue on that queue's
    page."""
    worker = Worker(url=newest.url, name="mail-1")
    for name in ("emails", "reports"):
        worker.handler(name, concurrency=3)(print)

    async def story(screen: Screen) -> None:
        await screen.shows("1 of 1 workers alive")
        await screen.press("2")
        shown = await screen.shows(
            "1 of 1 workers alive", "mail-1 ", "emails,", "0 of 6", "alive ", str(os.getpid())
        )
        assert shown.count("mail-1") == 1
        await screen.press("u")
        await screen.shows("It is registered 2 times: open it by Enter, and choose where.")
        await screen.press("S")
        await screen.shows("Stop the program of mail-1.")
        await screen.press("n")
        await screen.press("enter")
        await screen.shows(
            "alive since",
            "0 of 6 running",
            f"process {os.getpid()}",
            "emails ",
            "reports ",
            "0 of 3",
        )
        await screen.press("down", "u")
        await screen.shows("The worker leases no more jobs of this queue.", "alive, quiet since")
        await screen.press("enter")
        await screen.shows("headrace · reports · worker mail-1.", "quiet since")
        await screen.press("escape", "escape")
        await screen.shows("· workers", "mixed")

    with worker:

        def facts() -> list[WorkerState]:
            workers = *queue.admin.workers(), *reports.admin.workers()
            return [one for one in workers if one.facts]

        with Queue("reports", url=newest.url) as reports:
            until(lambda: len(facts()) == 2, "the worker has reported in both queues")
        tell(story, size=(120, 24))


def test_read_only(tell: Tell, queue: Queue) -> None:
    queue.enqueue(b"x")

    async def story(screen: Screen) -> None:
        await screen.shows("emails")
        for key in ("p", "P", "D"):
            await screen.press(key)
            await screen.shows("Nothing can be done: --read-only.")

    tell(story, read_only=True)
    assert queue.counts().waiting == 1


def test_a_user_of_the_server_that_may_only_read(tell: Tell, queue: Queue, newest: Server) -> None:
    queue.enqueue(b"x", id="a")

    async def story(screen: Screen) -> None:
        await screen.shows("emails", "✓ balanced")
        await screen.press("p")
        await screen.shows("This user of the server may not do that")
        await screen.press("enter")
        await screen.shows("[waiting]", "a ")

    with redis.Redis(unix_socket_path=newest.path) as client, viewing(client):
        tell(story, url=newest.url.replace("unix://", "unix://viewer:secret@"))
    assert not queue.admin.paused()


def test_an_end(tell: Tell, newest: Server) -> None:
    """A job is found by its id. The screen has how, when and by which worker it ended, if the queue
    keeps a history."""
    with Queue("emails", url=newest.url, history=10) as queue:
        queue.enqueue(b"kept", id="a")
        lease = queue.lease()
        lease.complete()

        async def story(screen: Screen) -> None:
            await screen.press("f")
            await screen.shows("Find the job")
            await screen.types("a")
            await screen.shows(
                "completed",
                f"ended with {lease.worker}",
                "in attempt 1, with",
                "payload: text, 4 bytes",
            )
            await screen.press("C")
            await screen.shows("There is nothing here to do that with.")

        tell(story)
