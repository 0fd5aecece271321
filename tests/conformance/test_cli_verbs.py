"""The verbs of the command line that read or change a queue. The tests check their output and exit
codes."""

from __future__ import annotations

import json
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace import Counts, FanOut, Flow, NewJob, Queue
from headrace.errors import RunSuspended
from tests.support.awaiting import until
from tests.support.facts import each
from tests.support.program import PATIENCE, Program, Terminal, refused, started
from tests.support.servers import Server


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue]:
    """Make a queue with a job in every state. Job r runs, w waits, d is delayed, and x is dead."""
    with Queue("q", url=newest.url) as queue:
        queue.enqueue(b"X" * 5000, id="x")
        queue.lease().dead_letter("it\nwas wrong")
        queue.enqueue(b"R\xff", id="r", headers={"tenant": "a"})
        queue.lease()
        queue.enqueue(b"W", id="w")
        queue.enqueue(b"D", id="d", delay=60)
        yield queue


def lines(done: subprocess.CompletedProcess[str]) -> list[Any]:
    """Return the JSON values that the program printed, one a line. It must have succeeded."""
    assert (done.returncode, done.stderr) == (0, ""), done
    return [json.loads(line) for line in done.stdout.splitlines()]


def outcome(done: subprocess.CompletedProcess[str]) -> tuple[int, str]:
    return done.returncode, done.stdout


# -- what all have in common -----------------------------------------------------------------------

OF_A_QUEUE = [
    "list", "find a", "show", "show a", "result a", "events", "cancel a", "reschedule a --delay 1", "expire --yes",
    "move {} other", "pause", "resume", "drain", "purge --yes", "delete --yes", "fail-worker w --yes", "repair",
    "dead list", "dead redrive", "dead purge --yes", "schedules list", "schedules remove s", "enqueue a", "stats",
    "schedules add s --every 60", "workers", "signal a b",
]  # fmt: skip


def words(command: str, queue: str) -> list[str]:
    """Return the words of a command with the queue in its place."""
    if "{}" in command:
        return command.format(queue).split()
    verb, *rest = command.split()
    group = [rest.pop(0)] if verb in ("dead", "schedules") else []
    return [verb, *group, queue, *rest]


def test_an_unknown_queue_is_refused(within: Program, queue: Queue) -> None:
    """Every verb refuses it and suggests the name of a queue that exists. No key is created."""
    for command in OF_A_QUEUE:
        refused(within(*words(command, "qq")), "there is no queue qq, did you mean q?")
    refused(
        within("move", "q", "other"),
        "there is no queue other in namespace headrace (--create makes it)",
    )
    refused(within("flows", "list", "shop"), "there is no flow shop")
    refused(within("flows", "show", "shop", "a"), "there is no flow shop")
    assert within("queues").stdout == "q\n"


def test_create(within: Program, newest: Server) -> None:
    """The option makes the queue for commands where that makes sense."""
    for command in ("enqueue a", "pause", "schedules add s p --every 60"):
        name = command.split()[0]
        done = within(*words(command, name), "--create")
        assert done.returncode == 0, done
    assert within("move", "enqueue", "enqueue", "--create").returncode == 2
    # a pause alone is no queue to be found
    assert within("queues").stdout.split() == ["enqueue", "schedules"]
    with Queue("pause", url=newest.url) as paused:
        assert paused.admin.paused()


def test_options_stand_before_or_after(within: Program, queue: Queue, newest: Server) -> None:
    """The program and a group of commands have these options."""
    with Queue("q", url=newest.url, namespace="else") as other:
        other.enqueue(b"x", id="elsewhere")
    for command in (
        ["--namespace", "else", "--json", "list", "q"],
        ["list", "q", "--namespace", "else", "--json"],
        ["--json", "list", "--namespace", "else", "q"],
        ["--namespace", "else", "find", "q", "elsewhere", "--json"],
    ):
        assert [row["id"] for row in lines(within(*command))] == ["elsewhere"], command
    for command in (
        ["--json", "--url", newest.url, "dead", "list", "q"],
        ["dead", "--json", "--url", newest.url, "list", "q"],
        ["dead", "list", "q", "--json", "--url", newest.url],
        ["dead", "q", "--json", "--url", newest.url],
        ["--url", newest.url, "--json", "dead", "q"],
    ):
        assert [row["id"] for row in lines(within(*command, at=None))] == ["x"], command
    assert outcome(within("--yes", "dead", "purge", "q")) == (0, "purged 1\n")
    assert outcome(within("-y", "purge", "q")) == (0, "purged 2\n")


DESTRUCTIVE = ["purge", "delete", "expire", "fail-worker w", "dead purge"]


@each("command", DESTRUCTIVE)
def test_nothing_is_destroyed_unasked(within: Program, queue: Queue, command: str) -> None:
    """Without a terminal there is no user to ask."""
    before = queue.counts()
    refused(within(*words(command, "q")), "give --yes")
    assert queue.counts() == before


def test_asked_on_a_terminal(queue: Queue, terminal: Terminal) -> None:
    code, seen = terminal("delete", "q", answer=b"n\n")
    assert code == 1
    assert "Delete q with all its 4 jobs? [y/N]" in seen
    assert queue.counts().present == 4
    code, seen = terminal("delete", "q", answer=b"y\n")
    assert code == 0
    assert "deleted q, 4 jobs" in seen
    assert queue.counts() == Counts(enqueued=4, deleted=4)


@pytest.mark.sampled
@pytest.mark.parametrize(
    "command", [["stats"], ["list", "q"], ["dead", "q"], ["show", "q", "x"], ["find", "q", "x", "r"], ["workers"],
                ["--help"], ["list", "--help"], ["schedules", "add", "--help"]], ids=" ".join,
)  # fmt: skip
def test_it_fits_80_columns(queue: Queue, terminal: Terminal, command: list[str]) -> None:
    """The output fits and shows no large payload as a whole."""
    _, seen = terminal(*command, COLUMNS="80")
    shown = re.sub(r"\x1b\[[\d;]*m", "", seen).splitlines()
    assert shown
    if command[0] != "show":  # values stand on lines of their own, which the terminal may wrap
        assert max(map(len, shown)) <= 80
    assert "X" * 3000 not in seen


# -- looking ---------------------------------------------------------------------------------------


def test_list(within: Program, queue: Queue, newest: Server) -> None:
    """The command lists running, waiting, delayed and dead jobs. JSON has all fields of each."""
    rows = lines(within("list", "q", "--json"))
    assert [(row["id"], row["state"]) for row in rows] == [
        ("r", "leased"), ("w", "waiting"), ("d", "delayed"), ("x", "dead"),
    ]  # fmt: skip
    assert (rows[0]["payload_hex"], rows[0]["headers"], rows[0]["attempt"]) == (
        b"R\xff".hex(),
        {"tenant": "a"},
        1,
    )
    assert rows[0]["worker"]
    assert rows[2]["due"] > rows[2]["enqueued_at"]
    assert (rows[3]["payload"], rows[3]["reason"]) == ("X" * 5000, "it\nwas wrong")
    for state, wanted in {
        "running": "r",
        "leased": "r",
        "waiting": "w",
        "delayed": "d",
        "dead": "x",
    }.items():
        assert [row["id"] for row in lines(within("list", "q", "--json", "--state", state))] == [
            wanted
        ]
    assert len(lines(within("list", "q", "--json", "--limit", "2"))) == 2
    assert lines(within("list", "q", "--json", "--state", "ended")) == []
    with Queue("kept", url=newest.url, history=10) as kept:
        kept.enqueue(b"x", id="gone")
        assert kept.cancel("gone")
    (row,) = lines(within("list", "kept", "--json", "--state", "ended"))
    assert (row["id"], row["state"], row["payload"], row["reason"]) == (
        "gone",
        "cancelled",
        "x",
        None,
    )
    assert row["enqueued_at"] > 0
    assert "cancelled" in within("list", "kept", "--state", "ended").stdout
    assert within("list", "q", "--state", "lost").returncode == 2


def test_list_as_fields(within: Program, queue: Queue) -> None:
    """Fields stand between tabs under their names. A large payload is cut."""
    head, *rows = (line.split("\t") for line in within("list", "q").stdout.splitlines())
    table = {row[0]: dict(zip(head, row, strict=True)) for row in rows}
    assert [table[name]["state"] for name in "rwdx"] == ["leased", "waiting", "delayed", "dead"]
    assert table["x"]["payload"] == "X" * 200 + "…"
    assert table["x"]["reason"] == "it\\nwas wrong"
    assert table["r"]["payload"] == "R\\xff"
    assert table["d"]["due"]


def test_a_long_listing_on_a_terminal(queue: Queue, terminal: Terminal) -> None:
    """The list ends after a hundred jobs and says so, unless --limit has another number. A program
    gets all jobs."""
    queue.enqueue_many([NewJob(b"", id=f"job-{number}") for number in range(150)])
    _, seen = terminal("list", "q")
    assert seen.count("job-") == 98
    assert "the first 100; --limit N shows more" in seen
    _, seen = terminal("list", "q", "--limit", "120")
    assert seen.count("job-") == 118
    assert "--limit N" not in seen


def test_find(within: Program, queue: Queue) -> None:
    rows = lines(within("find", "q", "x", "w", "--json"))
    assert [(row["id"], row["state"]) for row in rows] == [("x", "dead"), ("w", "waiting")]
    done = within("find", "q", "w", "absent")
    assert done.returncode == 1
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["id", "w"]
    assert done.stderr == "headrace: 1 of 2: no such job in q\n"
    refused(within("find", "q", "absent", "--json"), "1 of 1: no such job in q", code=1)


def test_the_tree_of_a_run(within: Program, queue: Queue, newest: Server) -> None:
    """Children of children are lines below their parent, and nested in JSON. A line says where the
    child is.
    """
    with Queue("q/a", url=newest.url) as parent, Queue("q/b", url=newest.url) as below:
        parent.enqueue(b"x", id="run")
        with pytest.raises(RunSuspended):
            parent.lease().job.run_all([("q/b", b"1"), ("q/b", b"2")])
        with pytest.raises(RunSuspended):
            below.lease().job.run(("q/b", b"3"))
    shown = within("show", "q/a", "run").stdout.splitlines()
    words = [line.split(":")[0] for line in shown if line.startswith(("step\t", "child\t"))]
    assert words == ["step\tb", "child\t  ↳ b", "step\tb-2"]
    placed = [line.partition(" as ")[2].partition(",")[0] for line in shown if "running as" in line]
    assert placed == ["run/b of q/b", "run/b/b of q/b", "run/b-2 of q/b"]
    (row,) = lines(within("show", "q/a", "run", "--json"))
    assert [[one["child"] for one in step["children"]] for step in row["steps"]] == [
        ["run/b/b"],
        [],
    ]


def test_show(within: Program, queue: Queue) -> None:
    """The command shows all of a job, or the queue."""
    (row,) = lines(within("show", "q", "w", "--json"))
    assert (row["id"], row["state"], row["payload"], row["position"]) == ("w", "waiting", "W", 0)
    shown = dict(line.split("\t") for line in within("show", "q", "r").stdout.splitlines())
    assert (shown["state"], shown["tenant"], shown["payload"]) == ("leased", "a", "R\\xff")
    long = within("show", "q", "x").stdout
    assert "X" * 2000 + "… (5000 bytes; --json shows all)" in long
    refused(within("show", "q", "absent"), "no such job in q", code=1)
    (row,) = lines(within("show", "q", "--json"))
    assert (row["queue"], row["waiting"], row["leased"], row["delayed"], row["dead"]) == (
        "q",
        1,
        1,
        1,
        1,
    )
    assert (row["paused"], row["schedules"], row["lost"]) == (False, [], 0)
    assert "waiting\t1\n" in within("show", "q").stdout


def test_result(within: Program, queue: Queue) -> None:
    """The result is printed byte by byte, so that it can go to a file. The command can wait for
    it."""
    refused(within("result", "q", "w"), "job 'w' has not ended; it goes on", code=1)
    queue.complete(queue.lease(), b"done\n")
    assert outcome(within("result", "q", "w")) == (0, "done\n")
    queue.admin.reschedule("d", 0)
    lease = queue.lease()
    completing = threading.Timer(0.2, queue.complete, (lease, b"\xff"))
    completing.start()
    assert lines(within("result", "q", "d", "w", "--timeout", "60", "--json")) == [
        {"id": "d", "result_hex": "ff"},
        {"id": "w", "result": "done\n"},
    ]
    completing.join()
    done = within("result", "q", "w", "x")
    assert (done.returncode, done.stdout) == (1, "id\tresult\nw\tdone\\n\n")
    assert done.stderr == "headrace: 1 of 2: job 'x' is dead: it\\nwas wrong\n"
    done = within("result", "q", "x", "w", "--json")
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"id": "w", "result": "done\n"},
        {"id": "x", "result": None, "state": "dead", "reason": "it\nwas wrong"},
    ]
    assert done.returncode == 1
    refused(within("result", "q", "nobody"), "1 of 1: no result", code=1)


def test_the_ends_that_a_history_has(within: Program, newest: Server) -> None:
    with Queue("kept", url=newest.url, history=10) as kept:
        kept.enqueue(b"x", id="done")
        lease = kept.lease()
        assert lease is not None
        assert lease.complete()
        kept.enqueue(b"x", id="gone")
        assert kept.cancel("gone")
    (done, gone) = lines(within("find", "kept", "done", "gone", "--json"))
    assert (done["state"], done["worker"], done["payload"]) == ("completed", lease.worker, "x")
    assert done["enqueued_at"] == lease.job.enqueued_at
    (attempt,) = done["attempts"]
    assert (attempt["number"], attempt["worker"], attempt["error"]) == (1, lease.worker, None)
    listed = lines(within("list", "kept", "--state", "ended", "--end", "cancelled", "--json"))
    assert [one["id"] for one in listed] == ["gone"]
    refused(within("list", "kept", "--kind", "k"), "add --state ended", code=2)
    assert (gone["state"], gone["worker"]) == ("cancelled", None)
    shown = within("show", "kept", "done").stdout
    assert "state\tcompleted\n" in shown
    assert f"worker\t{lease.worker}\n" in shown
    refused(within("result", "kept", "gone"), "job 'gone' is cancelled", code=1)


def test_queues_and_workers(within: Program, queue: Queue, newest: Server) -> None:
    with Queue("other", url=newest.url) as other:
        other.enqueue(b"x")
    assert within("queues").stdout == "other\nq\n"
    assert lines(within("queues", "--json")) == [{"queue": "other"}, {"queue": "q"}]
    (row,) = lines(within("workers", "--json"))
    assert (row["queue"], row["leased"], row["alive"]) == ("q", 1, True)


@pytest.mark.slow
def test_events(newest: Server, queue: Queue) -> None:
    """Each event is printed at once on its own line, until the reader closes the pipe."""
    arguments = ("events", "q", "--follow", "--json", "--kind", "added", "--kind", "cancelled")
    with started(
        *arguments, url=newest.url, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.stderr.readline() == b"headrace: listening to q\n"
        queue.enqueue(b"n", id="n")
        queue.cancel("n")
        seen = [json.loads(program.stdout.readline()) for _ in range(2)]
        assert [(row["kind"], row["id"], row["queue"]) for row in seen] == [
            ("added", "n", "q"),
            ("cancelled", "n", "q"),
        ]
        program.stdout.close()
        until(lambda: queue.enqueue(b"m") and program.poll() is not None, "it ends", PATIENCE)
        assert program.stderr.read() == b""
        assert program.returncode == 141


def test_events_end(within: Program, queue: Queue) -> None:
    done = within("events", "q", "--timeout", "0.1")
    assert outcome(done) == (0, "")
    assert within("events", "q", "--follow", "--timeout", "1").returncode == 2
    assert "kinds=" in within("events", "q", "--kind", "lost").stderr


# -- changing --------------------------------------------------------------------------------------


def test_cancel(within: Program, queue: Queue) -> None:
    assert outcome(within("cancel", "q", "w", "r")) == (0, "cancelled 2\n")
    done = within("cancel", "q", "d", "absent", "--json")
    assert done.returncode == 1
    assert [json.loads(line) for line in done.stdout.splitlines()] == [
        {"id": "d", "cancelled": True},
        {"id": "absent", "cancelled": False},
    ]
    queue.enqueue_many([b"p", b"p", b"s"])
    assert outcome(within("cancel", "q", "--payload", "p")) == (0, "cancelled 2\n")
    assert outcome(within("cancel", "q", "--payload", "p", "--json")) == (
        1,
        '{"queue": "q", "cancelled": 0}\n',
    )
    refused(within("cancel", "q"), "give ids, --payload, or --state")
    refused(within("cancel", "q", "s", "--payload", "s"), "give ids, --payload, or --state")


def test_reschedule(within: Program, queue: Queue) -> None:
    assert outcome(within("reschedule", "q", "d", "--at", "2100-01-31T08:00:00+01:00")) == (
        0,
        "rescheduled 1\n",
    )
    assert queue.find("d").due == 4105062000.0
    assert within("reschedule", "q", "d", "w", "--delay", "0", "--json").returncode == 1
    assert queue.find("d").state == "waiting"
    for wrong in (
        [],
        ["--delay", "1", "--at", "2100-01-31T08:00:00Z"],
        ["--at", "2100-01-31"],
        ["--at", "soon"],
    ):
        refused(within("reschedule", "q", "d", *wrong), "--at")


def test_purge_and_delete(within: Program, queue: Queue) -> None:
    assert outcome(within("purge", "q", "--yes", "--json")) == (0, '{"queue": "q", "purged": 2}\n')
    assert outcome(within("purge", "q", "--yes")) == (1, "purged 0\n")  # nothing done
    assert queue.counts() == Counts(leased=1, dead=1, enqueued=4, deleted=2)
    assert outcome(within("delete", "q", "--yes")) == (0, "deleted q, 2 jobs\n")
    assert queue.counts() == Counts(enqueued=4, deleted=4)


def test_expire(within: Program, queue: Queue) -> None:
    queue.lease()
    assert outcome(within("expire", "q", "r")) == (0, "expired 1\n")
    assert outcome(within("expire", "q", "--yes", "--json")) == (
        0,
        '{"queue": "q", "expired": 1}\n',
    )
    assert outcome(within("expire", "q", "--yes")) == (1, "expired 0\n")
    assert queue.counts().parked == 2
    done = within("expire", "q", "d")
    assert (done.returncode, done.stderr) == (1, "headrace: 1 of 1: no such job is leased in q\n")


def test_fail_worker(within: Program, queue: Queue) -> None:
    (worker,) = queue.admin.workers()
    done = within("fail-worker", "q", worker.name, "--yes", "--json")
    assert lines(done) == [{"queue": "q", "worker": worker.name, "jobs": 1}]
    assert queue.counts().parked == 1
    refused(within("fail-worker", "q", "absent", "--yes"), "there is no worker absent in q", code=1)
    refused(within("fail-worker", "q", "a b", "--yes"), "worker name 'a b'")


def test_drain(within: Program, queue: Queue) -> None:
    assert outcome(within("drain", "q", "--timeout", "0")) == (1, "3 left\n")
    queue.admin.purge()
    queue.cancel("r")
    assert outcome(within("drain", "q", "--json")) == (
        0,
        '{"queue": "q", "drained": true, "left": 0}\n',
    )


def test_changes_as_json(within: Program, queue: Queue, newest: Server) -> None:
    """One value says how the job ended."""
    with Queue("q/to", url=newest.url) as to:
        to.enqueue(b"x")
    for command, expected in {
        "pause q": {"queue": "q", "paused": True, "changed": True},
        "resume q": {"queue": "q", "paused": False, "changed": True},
        "dead redrive q": {"queue": "q", "redriven": 1},
        "move q q/to x": {"queue": "q", "to": "q/to", "moved": 1},
        "enqueue q p --id p": {"id": "p", "added": True, "outcome": "added"},
    }.items():
        assert json.loads(within(*command.split(), "--json").stdout) == expected, command
    assert json.loads(within("repair", "q", "--json").stdout)["dangling"] == 0
    assert "scripts" in json.loads(within("protocol", "--json").stdout)


def test_nothing_done(within: Program, queue: Queue) -> None:
    queue.admin.purge_dead()
    for command in ("dead redrive", "dead purge --yes"):
        assert within(*words(command, "q")).returncode == 1


def test_mend_a_dead_letter(within: Program, queue: Queue, tmp_path: Path) -> None:
    """The new payload comes from a text or a file. A failed call changes nothing."""
    (tmp_path / "mended").write_bytes(b"\xff\n")
    queue.admin.redrive()
    queue.admin.purge()
    for payload, kept in (("", b""), ("ä", "ä".encode()), (f"@{tmp_path / 'mended'}", b"\xff\n")):
        queue.enqueue(b"bad", id="m")
        queue.lease().dead_letter("bad")  # type: ignore[union-attr]
        assert within("dead", "redrive", "q", "--payload", payload).returncode == 2
        assert (
            within("dead", "redrive", "q", "m", "--payload", f"@{tmp_path / 'none'}").returncode
            == 2
        )
        assert within("dead", "redrive", "q", "other", "--payload", payload).returncode == 1
        assert outcome(within("dead", "redrive", "q", "m", "--payload", payload)) == (
            0,
            "redriven 1\n",
        )
        assert queue.find("m").job.payload == kept  # type: ignore[union-attr]
        assert queue.cancel("m")


def test_all_that_match(within: Program, queue: Queue) -> None:
    """State, reason and kind select jobs in place of ids."""
    queue.enqueue_many([NewJob(b"x", headers={"kind": kind}) for kind in "aab"])
    assert within("cancel", "q", "--kind", "a").returncode == 2
    assert within("cancel", "q", "w", "--state", "waiting").returncode == 2
    done = within("cancel", "q", "--state", "waiting", "--kind", "a", "--yes", "--json")
    assert lines(done) == [{"queue": "q", "cancelled": 2}]
    assert outcome(within("dead", "redrive", "q", "--reason", "was right")) == (1, "redriven 0\n")
    assert within("dead", "redrive", "q", "x", "--reason", "wrong").returncode == 2
    assert outcome(within("dead", "redrive", "q", "--reason", "was wrong")) == (0, "redriven 1\n")
    queue.cancel("x")
    dead = queue.lease()
    assert dead is not None
    dead.dead_letter("late")
    assert outcome(within("dead", "purge", "q", "--reason", "late", "--yes")) == (0, "purged 1\n")
    assert queue.counts().lost == 0


# -- schedules and flows ---------------------------------------------------------------------------


def test_schedules_by_hand(within: Program, queue: Queue) -> None:
    """A schedule is run now, paused and resumed. An unknown schedule is an error."""
    queue.admin.schedule("a", b"tick", every=3600)
    done = within("schedules", "run", "q", "a", "--json")
    assert [state.job.id for state in queue.admin.waiting()][-1] == json.loads(done.stdout)["id"]
    assert outcome(within("schedules", "pause", "q", "a")) == (0, "paused 1\n")
    assert "paused" in within("schedules", "q").stdout
    assert outcome(within("schedules", "pause", "q", "a")) == (1, "paused 0\n")
    assert outcome(within("schedules", "resume", "q", "a")) == (0, "resumed 1\n")
    for verb in ("run", "pause", "resume"):
        refused = within("schedules", verb, "q", "none")
        assert (refused.returncode, "no such schedule in q" in refused.stderr) == (1, True)


def test_schedules(within: Program, queue: Queue) -> None:
    assert outcome(within("schedules", "add", "q", "hourly", "tick", "--every", "3600")) == (
        0,
        "added\n",
    )
    assert outcome(within("schedules", "add", "q", "hourly", "tick", "--every", "60")) == (
        0,
        "replaced\n",
    )
    nightly = [
        "--cron",
        "0 3 * * *",
        "--timezone",
        "Europe/Berlin",
        "--missed",
        "skip",
        "--header",
        "kind=night",
    ]
    within("schedules", "add", "q", "nightly", "x", *nightly)
    first, second = lines(within("schedules", "list", "q", "--json"))
    assert (first["name"], first["every"], first["missed"]) == ("hourly", 60.0, "once")
    assert (second["cron"], second["timezone"], second["missed"]) == (
        "0 3 * * *",
        "Europe/Berlin",
        "skip",
    )
    shown = within("schedules", "q").stdout.splitlines()
    assert [line.split("\t")[2] for line in shown] == ["timing", "every 60 s", "0 3 * * *"]
    done = within("schedules", "remove", "q", "hourly", "absent")
    assert outcome(done) == (1, "removed 1\n")
    assert done.stderr == "headrace: 1 of 2: no such schedule in q\n"
    assert [one.name for one in queue.admin.schedules()] == ["nightly"]
    for wrong in ([], ["--every", "60", "--cron", "* * * * *"], ["--cron", "soon"]):
        refused(within("schedules", "add", "q", "s", *wrong), "cron" if wrong else "every")


@pytest.fixture(params=[1, 6])
def shop(newest: Server, request: pytest.FixtureRequest) -> Iterator[Flow]:
    """Make two runs, with and without shards. One waits for its children, and the other has
    ended."""
    options: dict[str, Any] = {"url": newest.url, "shards": request.param}
    with Flow("shop", **options) as flow, Queue("shop/pick", **options) as pick:
        flow.stage("pick", next="send", children="pack")
        flow.stage("pack")
        flow.stage("send")
        flow.start(b"a", id="o-1", attributes={"customer": "ada"})
        flow.complete(pick.lease(), FanOut([b"1", b"2"], result=b"picked", join="send"))
        flow.start(b"b", id="o-2", stage="send")
        with Queue("shop/send", **options) as send:
            flow.complete(send.lease(), b"sent")
        yield flow


def test_flows(within: Program, shop: Flow) -> None:
    """Runs are listed and shown. No job moves by that."""
    before = shop.counts()
    rows = {row["id"]: row for row in lines(within("flows", "--json", "list", "shop"))}
    assert {name: (row["state"], row["stage"], row["pending"]) for name, row in rows.items()} == {
        "o-1": ("blocked", "pick", 2), "o-2": ("completed", "send", 0),
    }  # fmt: skip
    assert [
        row["id"] for row in lines(within("flows", "list", "--json", "--state", "blocked"))
    ] == ["o-1"]
    for state in ((), ("--state", "blocked")):
        (row,) = lines(within("list", "shop/pick", "--json", *state))
        assert (row["id"], row["state"]) == ("o-1", "blocked")
    (row,) = lines(within("flows", "show", "shop", "o-2", "--json"))
    assert (row["flow"], row["results"]) == ("shop", {"send": {"result": "sent"}})
    (row,) = lines(within("flows", "show", "shop", "o-1", "--json"))
    assert (row["attributes"], row["results"]) == (
        {"customer": "ada"},
        {"pick": {"result": "picked"}},
    )
    shown = dict(
        line.split("\t") for line in within("flows", "show", "shop", "o-1").stdout.splitlines()
    )
    assert (shown["state"], shown["children"], shown["customer"]) == ("blocked", "2", "ada")
    assert within("flows", "list").stdout.startswith("flow\tid\tstate\tstage\t")
    assert "reason" not in shown
    done = within("flows", "show", "shop", "absent")
    assert (done.returncode, done.stderr) == (1, "headrace: 1 of 1: no such run in shop\n")
    assert shop.counts() == before


def test_a_flow_that_failed_says_why(within: Program, shop: Flow, newest: Server) -> None:
    """The reason is shown for a run and for a child of one."""
    with Queue("shop/pack", url=newest.url, shards=shop.ops.settings.shards) as pack:
        first, second = pack.lease_many(2)
        assert first.dead_letter("no\nbox")
        assert shop.complete(second)
    assert shop.state("o-1").state == "failed"
    name = first.job.id
    for run, reason in (
        (name, "no\nbox"),
        ("o-1", f"1 of 2 children failed, the first {name}: no\nbox"),
    ):
        (row,) = lines(within("flows", "show", "shop", run, "--json"))
        assert (row["state"], row["reason"]) == ("failed", reason)
        shown = dict(
            line.split("\t") for line in within("flows", "show", "shop", run).stdout.splitlines()
        )
        assert shown["reason"] == reason.replace("\n", "\\n")


def test_an_ended_stage_shows_its_children(within: Program, shop: Flow, newest: Server) -> None:
    """The children are shown as far as the history of their queue has them."""
    options: dict[str, Any] = {"url": newest.url, "shards": shop.ops.settings.shards}
    with Queue("shop/pick", history=10, **options) as pick, Queue("shop/pack", **options) as pack:
        assert pick.lease() is None
        for lease in pack.lease_many(2):
            assert shop.complete(lease)
    name = lease.job.id.rpartition("/")[0]
    (row,) = lines(within("show", "shop/pick", "o-1", "--json"))
    assert (row["state"], row["children"]["completed"]) == ("completed", 2)
    assert row["children"]["places"][0] == {
        "id": f"{name}/0",
        "stage": "pack",
        "state": "completed",
    }
    shown = [line.split("\t") for line in within("show", "shop/pick", "o-1").stdout.splitlines()]
    assert ["children", "2 completed"] in shown
    assert ["child", f"{name}/1: completed in pack"] in shown


def test_flows_are_cancelled(within: Program, shop: Flow) -> None:
    """Runs are cancelled with their children. An ended run can't be cancelled."""
    assert within("flows", "cancel", "shop", "o-1").stdout == "cancelled 1\n"
    assert shop.state("o-1").state == "cancelled"
    assert shop.counts()["send"].present == 0
    done = within("flows", "cancel", "shop", "o-1", "o-2", "--json")
    assert [json.loads(row)["cancelled"] for row in done.stdout.splitlines()] == [False, False]
    assert (done.returncode, done.stderr) == (
        1,
        "headrace: 2 of 2: no such run in shop, or it has ended\n",
    )


# -- completion ------------------------------------------------------------------------------------


def test_completion(within: Program) -> None:
    """The shell asks the program for completions."""
    done = within(_HEADRACE_COMPLETE="complete_bash", COMP_WORDS="headrace re", COMP_CWORD="1")
    found = [
        "relay",
        "result",
        "reschedule",
        "resume",
        "resume-worker",
        "repair",
        "reshard",
        "redeclare",
        "replay",
    ]
    assert done.stdout.split() == found


def test_completion_of_queues(within: Program, newest: Server) -> None:
    """Names of queues come from the server. Without a server there are no completions and no
    message."""
    with Queue("ada", url=newest.url) as ada, Queue("bob", url=newest.url, namespace="m") as bob:
        ada.enqueue(b"x")
        bob.enqueue(b"x")
    for words, found in (("show a", ["ada"]), ("purge b", []), ("--namespace m show ", ["bob"])):
        asked = {"COMP_WORDS": f"headrace {words}", "COMP_CWORD": str(len(words.split(" ")))}
        done = within(_HEADRACE_COMPLETE="complete_bash", **asked)
        assert (done.stdout.split(), done.stderr) == (found, "")
    away = {
        "HEADRACE_URL": "redis://localhost:1",
        "COMP_WORDS": "headrace show a",
        "COMP_CWORD": "2",
    }
    done = within(_HEADRACE_COMPLETE="complete_bash", **away)
    assert (done.stdout.split(), done.stderr) == ([], "")


def test_enqueue_under_conditions(within: Program, newest: Server) -> None:
    """The command refuses a job, waits for room, replaces a job, and keeps an id after its job."""

    def add(*words: str) -> tuple[int, str]:
        done = within("enqueue", "q", *words)
        return done.returncode, (done.stdout + done.stderr).replace(" ", "")

    assert add("a", "b", "--create", "--max-waiting", "2")[0] == 0
    for more in ((), ("--full", "block", "--timeout", "0.1")):
        code, said = add("c", "--max-waiting", "2", *more)
        assert (code, "2jobswait" in said) == (1, True), said
    unique = ("--id", "i", "--unique-for", "60", "--json")
    assert '"outcome":"added"' in add("old", *unique)[1]
    assert '"outcome":"replaced"' in add("new", "--replace", *unique)[1]
    with Queue("q", url=newest.url) as queue:
        assert sorted(lease.job.payload for lease in queue.lease_many(9) if lease.complete()) == [
            b"a",
            b"b",
            b"new",
        ]
    assert '"outcome":"present"' in add("new", *unique)[1]
    assert add("x", "--throttle", "5")[0] == 2
    assert add("x", "--full", "no")[0] == 2


def test_set_concurrency(within: Program, queue: Queue, newest: Server) -> None:
    """The number is kept until it is reset. Neither, or both, is refused."""
    key = queue.ops.keys.key("stats")
    assert within("set-concurrency", "q", "4").stdout == "4 at once in q\n"
    assert newest.client().hget(key, "concurrency") == b"4"
    done = within("set-concurrency", "q", "--reset", "--json")
    assert json.loads(done.stdout) == {"queue": "q", "concurrency": None}
    assert not newest.client().hexists(key, "concurrency")
    for wrong in ((), ("4", "--reset")):
        done = within("set-concurrency", "q", *wrong)
        assert (done.returncode, done.stderr) == (2, "headrace: give a NUMBER, or --reset\n")
    assert "give at least 1 and at most 10000" in within("set-concurrency", "q", "0").stderr
