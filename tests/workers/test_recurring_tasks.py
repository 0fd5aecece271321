"""Schedules that tasks declare. A worker's start makes them, and they end when they have left the
code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from headrace import AsyncTasks, ConfigurationError, Queue, Schedule, Tasks
from headrace._core.worker import scheduler
from headrace.testing import run, travel
from tests.support.awaiting import until
from tests.support.engines import Running
from tests.support.facts import each
from tests.support.servers import Server

Work = Callable[..., Running]
NOWHERE = "redis://127.0.0.1:1/0"


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler, "DECLARE_EVERY_S", 0.1)


def serves(work: Work, url: str, declare: Callable[[Any], None], **options: Any) -> Running:
    """Start a worker of a version of the code that *declare* declares."""
    tasks = Tasks("q", url)
    declare(tasks)
    running = work(**options)
    running.worker.tasks(tasks)
    return running


def known(queue: Queue) -> dict[str, Schedule]:
    return {one.name: one for one in queue.admin.schedules()}


def test_they_run(work: Work, kind: str, queue: Queue, newest: Server) -> None:
    """Each tick is a call without arguments."""
    calls: list[str] = []
    tasks = Tasks("q", newest.url)

    @tasks.cron(every=0.1)
    @tasks.task(name="often")
    def frequent(to: str = "all") -> None:
        calls.append(tasks.job.id)

    @tasks.cron("0 3 * * *", tz="Europe/Berlin", missed="skip")
    def nightly() -> None: ...

    running = work()
    running.worker.tasks(tasks)
    with running:
        until(lambda: len(calls) >= 3)
        every, cron = known(queue)["tasks/often"], known(queue)["tasks/nightly"]
    assert (every.every, cron.cron, cron.timezone, cron.missed) == (
        0.1,
        "0 3 * * *",
        "Europe/Berlin",
        "skip",
    )
    assert all(name.startswith("tasks/often@") for name in calls)
    tasks.close()


def test_a_restart_of_the_same_code_changes_nothing(
    work: Work, queue: Queue, newest: Server
) -> None:
    def version(tasks: Tasks) -> None:
        tasks.cron(every=3600)(tasks.task(name="x")(lambda: None))

    with serves(work, newest.url, version):
        until(lambda: known(queue))
        due = known(queue)["tasks/x"].next_due
    assert known(queue)["tasks/x"].next_due == due
    with serves(work, newest.url, version) as running:
        until(lambda: all(one.recurring.declared_as for one in running.engine.lifecycle.consumers))
        assert known(queue)["tasks/x"].next_due == due


@pytest.mark.sampled
def test_versions_side_by_side(work: Work, queue: Queue, newest: Server) -> None:
    """In a rolling restart each version has its schedules. The last old worker ends those that left
    the code."""

    def old(tasks: Tasks) -> None:
        tasks.cron(every=3600)(tasks.task(name="kept")(lambda: None))
        tasks.cron(every=3600)(tasks.task(name="left")(lambda: None))

    def new(tasks: Tasks) -> None:
        tasks.cron(every=7200)(tasks.task(name="kept")(lambda: None))
        tasks.cron(every=3600)(tasks.task(name="came")(lambda: None))

    queue.admin.schedule("by hand", b"x", every=3600)
    first = serves(work, newest.url, old)
    with first:
        until(lambda: set(known(queue)) == {"by hand", "tasks/kept", "tasks/left"})
        second = serves(work, newest.url, new)
        second.start()
        until(lambda: set(known(queue)) == {"by hand", "tasks/kept", "tasks/left", "tasks/came"})
        until(lambda: known(queue)["tasks/kept"].every == 7200)
        again = serves(work, newest.url, old)  # one of the old that was started again
        with again:
            until(lambda: known(queue)["tasks/kept"].every == 3600)
        assert {"tasks/left", "tasks/came"} < set(known(queue))
    until(lambda: set(known(queue)) == {"by hand", "tasks/kept", "tasks/came"})
    until(lambda: known(queue)["tasks/kept"].every == 7200)  # as the code has it that is left
    second.close()
    assert set(known(queue)) == {"by hand", "tasks/kept", "tasks/came"}


def test_code_without_any_ends_them(work: Work, queue: Queue, newest: Server) -> None:
    def old(tasks: Tasks) -> None:
        tasks.cron(every=3600)(tasks.task(name="x")(lambda: None))

    with serves(work, newest.url, old):
        until(lambda: known(queue))
    with serves(work, newest.url, lambda tasks: tasks.task(name="y")(lambda: None)):
        until(lambda: not known(queue))


@pytest.mark.sampled
def test_one_that_is_deleted_with_its_queue_comes_back(
    work: Work, queue: Queue, newest: Server
) -> None:
    with serves(
        work, newest.url, lambda tasks: tasks.cron(every=3600)(tasks.task(name="x")(lambda: None))
    ):
        until(lambda: known(queue))
        queue.admin.delete()
        until(lambda: known(queue))


def test_one_that_left_the_code_ends_in_the_shard_to_which_it_moved(
    server: Server, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The number of shards changed while no old worker ran. No worker of the old code was ever in
    the new shards."""

    def version(*names: str) -> Running:
        tasks = Tasks("q", server.url, shards=4)
        for name in names:
            tasks.cron(every=3600)(tasks.task(name=name)(lambda: None))
        tasks.task(name="any")(lambda: None)
        running = Running(kind, url=server.url)
        running.worker.tasks(tasks)
        return running

    def known() -> set[str]:
        return {one.name for one in queue.admin.schedules()}

    with Queue("q", url=server.url, shards=4) as queue:
        queue.admin.schedule("by hand", b"x", every=3600)
        with version("kept", "left"):
            until(lambda: known() == {"by hand", "tasks/kept", "tasks/left"})
        queue.admin.reshard(6)
        queue.admin.reshard()
        with version("kept"):
            until(lambda: known() == {"by hand", "tasks/kept"})
            until(lambda: known() == {"by hand", "tasks/kept"})


def test_travelling(newest: Server, work: Work) -> None:
    """A test moves the time of a schedule. The schedule exists after a run without jobs."""
    calls: list[int] = []
    tasks = Tasks("q", NOWHERE)

    @tasks.cron("0 3 * * *")
    def nightly() -> None:
        calls.append(1)

    running = work(url=NOWHERE)
    running.worker.tasks(tasks)
    run(running.worker, newest.url)
    assert calls == []
    travel(newest.url, 86400)
    run(running.worker, newest.url)
    assert calls == [1]


@each("made", [Tasks, AsyncTasks])
def test_declarations_that_are_refused(made: Any) -> None:
    tasks = made("q", NOWHERE)

    def one(to: str) -> None: ...

    def two() -> None: ...

    with pytest.raises(ConfigurationError, match="a task that recurs is called without arguments"):
        tasks.cron(every=60)(one)
    with pytest.raises(ValueError, match="every= or cron="):
        tasks.cron()(two)
    with pytest.raises(ValueError, match="cron"):
        tasks.cron("every day")(two)
    with pytest.raises(ValueError, match="timezone"):
        tasks.cron("0 3 * * *", tz="Nowhere/Atlantis")(two)
    with pytest.raises(ValueError, match="missed"):
        tasks.cron(every=60, missed="never")(two)
    with pytest.raises(ConfigurationError, match="is no task of"):
        tasks.cron(every=60)(made("p", NOWHERE).task(two))
    task = tasks.cron(every=60)(two)
    assert tasks.cron(every=90)(task) is task
    assert [one.name for one in tasks._recurring] == ["tasks/two", "tasks/two#2"]
    with pytest.raises(ConfigurationError, match="goes above @tasks"):
        tasks.task(task)
