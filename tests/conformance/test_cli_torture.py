"""The command `headrace torture`. Servers of the tests are killed under it, and planted losses do
not go unnoticed."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from subprocess import PIPE

import attrs
import pytest

from headrace import Lease, NewJob, Queue, Receipt
from headrace.console.cli.torture import Line, Log, Torture, Verdict
from tests.support.awaiting import until
from tests.support.cluster import Cluster
from tests.support.facts import each
from tests.support.program import PATIENCE, Program, Started, refused, started
from tests.support.servers import EXACT, Server, binaries

QUICK = ("--minutes", "0.05", "--rate", "2000")
JOBS = ["a", "b", "c"]


class Supervised:
    """A server that starts again as soon as a command of the shell has killed it."""

    def __init__(self, server: Server, pid: Path) -> None:
        self.server = server
        self.kill = f"kill -9 $(cat {pid})"
        self.deaths = 0

    def wait(self, running: Started) -> tuple[int, str]:
        """Look after the server until the program ends. Return its exit code and its output."""

        def ended() -> bool:
            if self.server._running.poll() is not None:
                self.server.kill()
                self.server.start()
                self.deaths += 1
            return running.poll() is not None

        until(ended, "the end of the program", PATIENCE)
        out, err = running.communicate()
        assert b"Traceback" not in err, err
        return running.returncode, out.decode()


@pytest.fixture
def supervised(tmp_path: Path) -> Iterator[Callable[[bool], Supervised]]:
    """Return a maker of such a server. Its file has each acknowledged write, or nothing."""
    servers: list[Server] = []

    def make(appendonly: bool) -> Supervised:
        pid = tmp_path / "pid"
        extra = [*EXACT, "--pidfile", str(pid)]
        servers.append(Server(binaries()[0], appendonly=appendonly, extra=extra))
        servers[0].start()
        return Supervised(servers[0], pid)

    yield make
    for server in servers:
        server.__exit__()


@pytest.mark.slow
def test_a_server_that_keeps_its_writes(supervised: Callable[[bool], Supervised]) -> None:
    """Nothing is lost, whenever it is killed. Its own keys are gone at the end, and no others."""
    it = supervised(True)
    it.server.ask("SET", "mine", "1")
    arguments = ("torture", it.server.url, "--kill", it.kill, "--every", "0.7", "--yes", "--json")
    with started(*arguments, *QUICK, url=None, stdout=PIPE, stderr=PIPE) as running:
        code, out = it.wait(running)
    found = json.loads(out)
    assert code == 0, found
    assert it.deaths > 1
    assert found["acknowledged"] > 1000
    assert (found["lost"], found["completed_twice"], found["come_back"]) == (0, 0, 0)
    assert found["completed"] >= found["acknowledged"]
    assert 0 < found["longest_stall_s"] < PATIENCE
    assert it.server.ask("KEYS", "*") == [b"mine"]


@pytest.mark.slow
def test_a_server_that_keeps_nothing(supervised: Callable[[bool], Supervised]) -> None:
    """The jobs that were waiting are lost. The log that was asked for stays, and says so, too."""
    it = supervised(False)
    log = Path(it.server.path).parent / "calls"
    arguments = ("torture", it.server.url, "--kill", it.kill, "--every", "1.2", "--log", str(log))
    with started(*arguments, *QUICK, url=None, stdout=PIPE, stderr=PIPE) as running:
        code, out = it.wait(running)
        assert code == 1, out
    rows = dict(line.split("\t") for line in out.splitlines()[:-1])
    assert int(rows["lost"]) > 100
    assert out.endswith("LOST OR DOUBLED.\n")
    lines = [Line(**json.loads(line)) for line in log.read_text().splitlines()]
    assert Verdict.of(lines, ()).lost == int(rows["lost"])
    assert it.server.ask("KEYS", "*") == []


@pytest.mark.slow
def test_keys_of_others(headrace: Program, newest: Server) -> None:
    """A server that has any, in any database, is refused."""
    newest.client(db=3).set("mine", "1")
    refused(headrace("torture", newest.url, *QUICK), "has 1 keys", "--yes")
    assert newest.client(db=3).keys() == [b"mine"]
    assert newest.client().keys() == []


@pytest.mark.slow
def test_keys_of_others_on_any_master(headrace: Program) -> None:
    """A cluster is refused, too, and works when it has none. Nothing is left on its nodes."""
    with Cluster(binaries()[0]) as cluster, cluster.client() as client:
        done = headrace("torture", cluster.url, *QUICK)
        assert (done.returncode, client.keys()) == (0, [])
        for name in cluster.groups():
            client.set(f"{{{name}}}", "1")
            refused(headrace("torture", cluster.url, *QUICK), "has 1 keys", "--yes")
            client.delete(f"{{{name}}}")


@pytest.mark.slow
def test_so_many_jobs(headrace: Program, newest: Server) -> None:
    """It ends with the last job, and a file that is there is not written over."""
    done = headrace("torture", newest.url, "--jobs", "1500", "--rate", "50000", "--log", "calls")
    assert (done.returncode, done.stderr) == (
        0,
        "headrace: kill the server and start it again, for 5 minutes\n",
    )
    assert "acknowledged\t1500\ncompleted\t1500\nlost\t0\n" in done.stdout
    again = headrace("torture", newest.url, "--jobs", "1", "--log", "calls")
    refused(again, "calls", code=1)
    assert newest.client().keys() == []


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(newest: Server, number: int, code: int) -> None:
    """Its keys are gone."""
    with started("torture", newest.url, url=None) as running, newest.client() as client:
        until(lambda: client.keys("torture-*:jobs"), "its queue", PATIENCE)
        running.send_signal(number)
        assert running.wait(PATIENCE) == code
        assert client.keys() == []
        assert running.stderr is not None
        assert b"Traceback" not in running.stderr.read()


@pytest.mark.slow
def test_a_command_that_fails_is_named(headrace: Program, newest: Server) -> None:
    done = headrace("torture", newest.url, "--kill", "exit 3", "--every", "1.5", *QUICK)
    assert done.returncode == 0
    assert done.stderr == "headrace: the command of --kill ended with status 3\n"


# -- the verdict -----------------------------------------------------------------------------------


def dropping(queue: Queue, jobs: Sequence[NewJob]) -> list[Receipt]:
    """Acknowledge a job that is not added."""
    return [*ENQUEUE(queue, jobs[:-1]), Receipt(jobs[-1].id or "", True)]


def giving_back(queue: Queue, leases: Sequence[Lease]) -> list[bool]:
    """Acknowledge the completion of a job that goes back to the queue."""
    if len(leases) < 2:
        return COMPLETE(queue, leases)
    leases[-1].release()
    return [*COMPLETE(queue, leases[:-1]), True]


ENQUEUE = Queue.enqueue_many
COMPLETE = Queue.complete_many


def work(queue: Queue, folder: Path) -> Verdict:
    """Do a little work and judge it."""
    log = Log(folder / "log")
    with closing(log):
        return Torture(queue, log, jobs=500, ahead=100, rate=1e6).go(PATIENCE, PATIENCE, None)


def test_work_without_faults(newest_queue: Queue, tmp_path: Path) -> None:
    found = work(newest_queue, tmp_path)
    assert attrs.evolve(found, longest_stall_s=0) == Verdict(500, 500, 0, 0, 0, 0, 0)
    assert found.kept


def test_a_job_that_was_not_added_is_lost(
    newest_queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Queue, "enqueue_many", dropping)
    found = work(newest_queue, tmp_path)
    assert (found.acknowledged, found.completed, found.lost) == (500, 479, 21)
    assert not found.kept


def test_a_completion_that_did_not_happen_is_found(
    newest_queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Queue, "complete_many", giving_back)
    found = work(newest_queue, tmp_path)
    assert (found.completed, found.lost) == (500, 0)
    assert found.completed_twice > 0
    assert found.come_back > 0
    assert not found.kept


def line(call: str, sent: float, at: float, ids: str = "", answered: bool = True) -> Line:
    return Line(call, sent, at, ids.split(), answered)


GOOD = [
    line("enqueue", 0.0, 0.5, "a b c"),
    line("lease", 0.6, 0.7, "a b"),
    line("complete", 0.8, 1.0, "a"),
]


@each(
    ("more", "present", "number"),
    [
        ([], "b c", {}),
        ([], "b", {"lost": 1}),
        ([], "", {"lost": 2}),
        ([], "a b c", {}),  # what is in the queue may have come back, and nobody got it
        # an unanswered call may have completed it, or not
        ([line("complete", 1.0, 2.0, "b", False)], "c", {"outcome_unknown": 1}),
        ([line("complete", 1.0, 2.0, "b", False)], "", {"outcome_unknown": 1, "lost": 1}),
        # an enqueue that was not acknowledged is not lost
        ([line("enqueue", 1.0, 2.0, "d", False)], "b c", {"outcome_unknown": 1}),
        ([line("complete", 1.0, 2.0, "a")], "b c", {"completed_twice": 1}),
        ([line("lease", 1.1, 1.2, "a")], "b c", {"come_back": 1}),
        # a call that was under way when the completion was acknowledged
        ([line("lease", 0.9, 1.2, "a")], "b c", {}),
        # a line that was written late
        ([line("lease", 1.1, 1.2, "c"), line("complete", 0.9, 1.05, "c")], "b", {"come_back": 1}),
        ([line("release", 1.1, 1.2, "b")], "b c", {}),
    ],
)
def test_the_verdict(more: list[Line], present: str, number: dict[str, int]) -> None:
    """Each kind of loss is counted, in whatever order the lines were written."""
    found = Verdict.of([*GOOD, *more], present.split())
    names = ("lost", "completed_twice", "come_back", "outcome_unknown")
    assert {name: getattr(found, name) for name in names} == dict.fromkeys(names, 0) | number
    assert found.acknowledged == 3
    assert found.kept == ("lost" not in number and "completed_twice" not in number)


@each(
    ("lines", "stall"),
    [
        (GOOD, 0.5),
        ([line("lease", 7.0, 7.5), *GOOD], 6.5),
        ([line("lease", 7.0, 7.5, answered=False), *GOOD], 0.5),
        ([line("lease", 3.0, 3.5)], 3.5),
        ([], 0.0),
    ],
)
def test_the_longest_stall(lines: list[Line], stall: float) -> None:
    assert Verdict.of(lines, ()).longest_stall_s == stall


def test_the_log_is_the_kernel_s_at_once(tmp_path: Path) -> None:
    """A kill of the program loses no line."""
    log = Log(tmp_path / "log")
    log.write("enqueue", 0.0, JOBS)
    with closing(log):
        (found,) = Log.lines(log)
        assert (found.call, found.ids, found.answered) == ("enqueue", JOBS, True)


def test_a_log_is_never_written_over(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("mine")
    with pytest.raises(FileExistsError):
        Log(tmp_path / "log")
