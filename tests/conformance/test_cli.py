"""The program `headrace`, run as by users. The tests check its output, its exit codes and the
jobs."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.client import HTTPConnection
from io import BytesIO
from pathlib import Path
from subprocess import PIPE
from types import ModuleType

import pytest

import headrace as package
from headrace import AsyncWorker, ConfigurationError, Counts, NewJob, Queue, Worker
from headrace._installing import install_command
from headrace.console.cli import console
from headrace.console.cli.child import load
from headrace.console.cli.enqueue import BadLineError, Reader
from tests.support.awaiting import until
from tests.support.program import PATIENCE, Program, Terminal, on_a_terminal, refused, started
from tests.support.servers import Server

NOWHERE = "redis://user:secret@127.0.0.1:1/0"


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue]:
    with Queue("q", url=newest.url) as queue:
        yield queue


def waiting(queue: Queue) -> list[bytes]:
    return [item.job.payload for item in queue.admin.waiting()]


# -- enqueue ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_arguments(headrace: Program, queue: Queue) -> None:
    """Each argument becomes a job. Standard output has one id a line, and messages go elsewhere."""
    done = headrace("enqueue", "q", "--create", "a", "é b", "--header", "tenant=x=y", "--ids")
    jobs = [item.job for item in queue.admin.waiting()]
    assert done.returncode == 0
    assert done.stdout.splitlines() == [job.id for job in jobs]
    assert done.stderr.startswith("headrace: enqueued 2 jobs in ")
    assert [(job.payload, dict(job.headers)) for job in jobs] == [
        (one.encode(), {"tenant": "x=y"}) for one in ("a", "é b")
    ]


def test_an_id_and_a_delay(within: Program, queue: Queue) -> None:
    for expected in ("enqueued 1 jobs in ", "enqueued 0 jobs in "):
        done = within("enqueue", "q", "--create", "--id", "i", "--delay", "60", "--", "-a")
        assert done.returncode == 0
        assert done.stdout.startswith(expected)
    assert "; 1 were there already\n" in done.stdout
    assert [(item.job.id, item.job.payload) for item in queue.admin.delayed()] == [("i", b"-a")]


@pytest.mark.slow
def test_lines_from_standard_input(headrace: Program, queue: Queue) -> None:
    """A line has any bytes and either line ending. The last one needs no ending. An empty line is
    no job."""
    done = headrace("enqueue", "q", "--create", given=b"a\n\nb \r\n\xff\x00\r\r\n\r\nlast")
    assert done.returncode == 0
    assert waiting(queue) == [b"a", b"b ", b"\xff\x00\r", b"last"]


def test_lines_from_a_file(within: Program, queue: Queue, tmp_path: Path) -> None:
    """The file is larger than one read, one call and one buffer."""
    long = "x" * 3_000_000
    lines = [str(i) for i in range(2500)] + [long, "end"]
    (tmp_path / "jobs.txt").write_text("\n".join(lines))
    done = within("enqueue", "q", "--create", "--file", "jobs.txt", "--header", "from=file")
    assert re.match(r"enqueued 2502 jobs in [\d.]+ s, \d+/s; 0 were there already\n$", done.stdout)
    assert (done.returncode, done.stderr) == (0, "")
    jobs = [item.job for item in queue.admin.waiting()]
    assert [job.payload.decode() for job in jobs] == lines
    assert all(job.headers == {"from": "file"} for job in jobs)


ROWS = [
    {"payload": "text é", "id": "one", "headers": {"a": "b"}},
    {"payload": {"x": [1, 2.5, None, "é"]}},
    {"payload": None, "delay": 60},
    {"payload": "", "id": None, "delay": None, "headers": None},
]
BYTES = ["text é".encode(), '{"x":[1,2.5,null,"é"]}'.encode(), b"null", b""]


@pytest.mark.parametrize("ascii", [True, False], ids=["escaped", "utf-8"])
def test_json_lines(within: Program, queue: Queue, ascii: bool) -> None:
    """A string becomes its text, and any other payload becomes compact JSON. The fields id, delay
    and headers are used.
    """
    done = within(
        "enqueue",
        "q",
        "--create",
        "--jsonl",
        given="\n".join(json.dumps(row, ensure_ascii=ascii) for row in ROWS).encode(),
    )
    assert done.returncode == 0, done.stderr
    jobs = [item.job for item in queue.admin.waiting()]
    assert [job.payload for job in jobs] == [BYTES[0], BYTES[1], BYTES[3]]
    assert (jobs[0].id, dict(jobs[0].headers)) == ("one", {"a": "b"})
    assert [item.job.payload for item in queue.admin.delayed()] == [BYTES[2]]


BAD = {
    "{": "not JSON",
    "[1]": "not a JSON object",
    '{"id": "x"}': 'no "payload"',
    '{"payload": "x", "ID": "x"}': "'ID' is none of payload, id, delay, priority, headers",
    '{"payload": NaN}': "NaN is not JSON",
    '{"payload": 1e999}': "not JSON compliant",
    '{"payload": "\\ud800"}': "payload is not valid Unicode",
    '{"payload": "x", "id": 5}': "id must be a str",
    '{"payload": "x", "delay": -1}': "delay=-1",
    '{"payload": "x", "delay": "soon"}': "delay must be seconds",
    '{"payload": "x", "headers": {"a": 1}}': "headers must map str to str",
    "[" * 100_000: "recursion",
}


def test_what_is_no_json_line() -> None:
    """Each mistake has its own message."""
    with Queue("q", url=NOWHERE) as queue:
        for line, words in BAD.items():
            reader = Reader(BytesIO(f'{{"payload": "x"}}\n\n{line}\n'.encode()), queue, jsonl=True)
            with pytest.raises(BadLineError, match=r"^line 3: ") as caught:
                list(reader.batches())
            assert words in str(caught.value)
        with pytest.raises(BadLineError, match="line 1: not UTF-8"):
            list(Reader(BytesIO(b'{"payload": "\xff"}'), queue, jsonl=True).batches())


def test_a_bad_line_in_a_file(within: Program, queue: Queue, tmp_path: Path) -> None:
    """A file is checked as a whole before the first job is enqueued, so a bad line leaves no
    job."""
    (tmp_path / "jobs").write_text(f'{{"payload": "{"x" * 1000}"}}\n' * 1500 + '{"id": "x"}\n')
    done = within("enqueue", "q", "--create", "--jsonl", "-f", "jobs")
    refused(done, 'jobs, line 1501: no "payload"', "nothing was enqueued")
    run = within("enqueue", "q", "--create", "--jsonl", given=tmp_path / "jobs")
    refused(run, "line 1501", "nothing was enqueued")
    assert queue.counts() == Counts()


@pytest.mark.slow
def test_a_bad_line_in_a_stream(newest: Server, queue: Queue) -> None:
    """Jobs of a slow input are enqueued as they come. The message has their number."""
    arguments = ("enqueue", "q", "--create", "--jsonl", "-f", "-")
    with started(*arguments, url=newest.url, stdin=PIPE, stdout=PIPE, stderr=PIPE) as program:
        assert program.stdin is not None
        program.stdin.write(b'{"payload": "a"}\n{"payload": "b"}\n{"pay')
        program.stdin.flush()
        until(lambda: queue.counts().waiting == 2, patience=PATIENCE)
        out, err = program.communicate(b'load": "c"}\n{}\n', PATIENCE)
    assert (program.returncode, out) == (2, b"")
    assert err == b'headrace: line 4: no "payload"; 2 jobs, up to line 2, were enqueued\n'
    assert waiting(queue) == [b"a", b"b"]


@pytest.mark.slow
def test_interrupted(newest: Server, queue: Queue) -> None:
    """After Ctrl-C the program prints how many jobs were enqueued."""
    with started("enqueue", "q", "--create", url=newest.url) as program:
        assert program.stdin is not None
        program.stdin.write(b"a\nb\n")
        program.stdin.flush()
        until(lambda: queue.counts().waiting == 2, patience=PATIENCE)
        program.send_signal(signal.SIGINT)
        _, err = program.communicate(timeout=PATIENCE)
    assert program.returncode == 130
    assert re.fullmatch(
        rb"headrace: interrupted; [02] jobs.* were enqueued for certain, .*\n", err
    ), err


def test_wrong_arguments(within: Program, queue: Queue) -> None:
    """Each wrong argument is refused in one line that names it. No job is enqueued."""
    for arguments, word in {
        ("a queue", "x"): "queue name 'a queue'",
        ("q", "x", "--delay", "-1"): "--delay -1",
        ("q", "x", "y", "--id", "i"): "--id",
        ("q", "x", "--header", "a"): "NAME=TEXT",
        ("q", "x", "--header", "data=a"): "header name 'data'",
        ("q", "x", "--jsonl"): "not both",
        ("q", "--jsonl", "--delay", "1"): "--jsonl",
        ("q", "--file", "absent"): "absent: No such file",
    }.items():
        refused(within("enqueue", "--create", *arguments), word)
    assert queue.counts() == Counts()


@pytest.mark.parametrize(
    "command", [["move", "q", "q/other"], ["dead", "redrive", "q"], ["dead", "purge", "q"]]
)
def test_what_is_no_id(within: Program, command: list[str]) -> None:
    """A string that is no id is refused without a traceback. It does not stand for all jobs."""
    ran = within(*command, "")
    assert ran.returncode == 2
    assert "id ''" in ran.stderr
    assert "Traceback" not in ran.stderr


# -- which server, and its absence -----------------------------------------------------------------


@pytest.mark.parametrize(
    "command", [["enqueue", "q", "x"], ["stats"], ["dead", "list", "q"]], ids=lambda words: words[0]
)
def test_no_server_named(within: Program, command: list[str]) -> None:
    refused(within(*command, at=None), "--url", "HEADRACE_URL", "REDIS_URL", "embedded:DIR")


def test_which_server_is_meant(within: Program, newest: Server, queue: Queue) -> None:
    """The option counts first, then HEADRACE_URL, then REDIS_URL."""
    assert within("enqueue", "q", "--create", "a", "--url", newest.url, at=NOWHERE).returncode == 0
    assert within("enqueue", "q", "--create", "b", REDIS_URL=NOWHERE).returncode == 0
    assert within("enqueue", "q", "--create", "c", at=None, REDIS_URL=newest.url).returncode == 0
    assert waiting(queue) == [b"a", b"b", b"c"]


@pytest.mark.parametrize(
    "command", [["enqueue", "q", "x"], ["stats"], ["demo"]], ids=lambda words: words[0]
)
def test_a_server_that_is_not_there(within: Program, command: list[str]) -> None:
    """The command prints one line that names the server without its password."""
    done = within(*command, "--url", NOWHERE)
    refused(done, "redis://127.0.0.1:1/0: ", "refused", code=1)
    assert "secret" not in done.stderr


def test_urls_that_are_none(within: Program) -> None:
    refused(within("stats", "--url", "http://127.0.0.1"), "redis://…")
    refused(
        within("stats", "--url", "redis://:secret@127.0.0.1:port/0"),
        "redis://…: its host and port can't be read",
    )


# -- stats and dead letters ------------------------------------------------------------------------


def bury(queue: Queue, *payloads: bytes, reason: str = "no") -> list[str]:
    """Make dead letters of these payloads and return their ids."""
    ids = [receipt.id for receipt in queue.enqueue_many(list(payloads))]
    for lease in queue.lease_many(len(payloads)):
        assert lease.dead_letter(reason)
    return ids


def test_priorities(within: Program, newest: Server) -> None:
    """The command line finds the number of levels of a queue. A new queue has as many as the
    command asks for."""
    within("enqueue", "q", "--create", "--priority", "1", "low")
    within("enqueue", "q", "--create", "high")
    within(
        "enqueue",
        "q",
        "--jsonl",
        given=b'{"payload": "late", "priority": 1}\n{"payload": "first", "priority": 0}\n',
    )
    refused = within(
        "enqueue", "q", "--create", "--jsonl", given=b'{"payload": "x", "priority": 2}\n'
    )
    assert refused.returncode == 2
    assert "priority=2: give at least 0 and at most 1" in refused.stderr
    assert json.loads(within("stats", "q", "--json").stdout)["q"]["waiting"] == 4
    with Queue("q", url=newest.url, priorities=2) as queue:
        assert queue.admin.levels() == 2
        assert [lease.job.payload for lease in queue.lease_many(9)] == [
            b"high",
            b"first",
            b"low",
            b"late",
        ]
    refused = within("enqueue", "q", "--priority", "2", "x")  # no worker serves that level
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--priority 2: give at least 0 and at most 1" in refused.stderr
    within(
        "enqueue",
        "new",
        "--create",
        "--priorities",
        "3",
        "--jsonl",
        given=b'{"payload": "x", "priority": 2}\n',
    )
    with Queue("new", url=newest.url, priorities=3) as queue:
        assert queue.lease().job.priority == 2


def test_stats(within: Program, queue: Queue, newest: Server) -> None:
    """The command lists all queues of the namespace or the named ones, as fields between tabs or as
    JSON."""
    bury(queue, b"x")
    queue.enqueue_many([b"a", b"b"])
    queue.lease()
    with (
        Queue("group/other", url=newest.url) as other,
        Queue("q", url=newest.url, namespace="else") as foreign,
    ):
        other.enqueue(b"a", delay=60)
        foreign.enqueue_many([b"a"] * 7)
    lines = [line.split("\t") for line in within("stats").stdout.splitlines()]
    table = {row[0]: dict(zip(lines[0], row, strict=True)) for row in lines[1:]}
    assert list(table) == ["group/other", "q"]
    assert {name: table["q"][name] for name in ("waiting", "leased", "dead", "enqueued", "lost", "workers")} == {
        "waiting": "1", "leased": "1", "dead": "1", "enqueued": "3", "lost": "0", "workers": "1",
    }  # fmt: skip
    shown = json.loads(within("stats", "q", "--json").stdout)
    assert list(shown) == ["q"]
    (worker,) = shown["q"].pop("workers")
    assert (worker["leased"], worker["alive"]) == (1, True)
    assert (shown["q"].pop("lost"), shown["q"].pop("later")) == (0, 0)
    assert shown["q"].pop("paused") is False
    assert shown["q"].pop("reason") is None
    assert Counts(**shown["q"]) == Counts(waiting=1, leased=1, dead=1, enqueued=3)
    assert json.loads(within("stats", "--json", "--namespace", "else").stdout)["q"]["waiting"] == 7


def test_pause_and_resume(within: Program, queue: Queue) -> None:
    paused = [within("pause", "q", "--create") for _ in range(2)]
    assert [(done.stdout, done.returncode) for done in paused] == [
        ("paused\n", 0),
        ("it was paused already\n", 1),
    ]
    assert queue.admin.paused()
    queue.enqueue(b"x")
    head, row = (line.split("\t") for line in within("stats", "q").stdout.splitlines())
    assert dict(zip(head, row, strict=True))["paused"] == "yes"
    resumed = [within("resume", "q") for _ in range(2)]
    assert [(done.stdout, done.returncode) for done in resumed] == [
        ("resumed\n", 0),
        ("it was not paused\n", 1),
    ]
    assert not queue.admin.paused()


def test_move(within: Program, newest: Server) -> None:
    """All or some jobs are moved. A job that could not be moved is reported, and the command
    fails."""
    with Queue("g/a", url=newest.url) as source, Queue("g/b", url=newest.url) as target:
        source.enqueue_many([NewJob(b"x", id=name) for name in "abc"])
        assert within("move", "g/a", "g/b", "a", "--create").stdout == "moved 1\n"
        part = within("move", "g/a", "g/b", "b", "a")
        assert (part.returncode, part.stdout) == (1, "moved 1\n")
        assert part.stderr == "headrace: 1 of 2: no such job waits, or its id is taken in g/b\n"
        assert within("move", "g/a", "g/b").stdout == "moved 1\n"
        assert target.counts().waiting == 3
        source.enqueue(b"y")
        assert within("move", "g/a", "other", "--create").stdout == "moved 1\n"


def test_workers(within: Program, queue: Queue, newest: Server) -> None:
    queue.enqueue_many([b"a", b"b"])
    held = queue.lease_many(2)
    with Queue("other", url=newest.url) as other:
        other.enqueue(b"c")
        other.lease()
    lines = [line.split("\t") for line in within("workers").stdout.splitlines()]
    assert lines[0] == [
        "queue",
        "worker",
        "since",
        "alive",
        "leased",
        "slots",
        "machine",
        "pid",
        "version",
        "MiB",
        "children",
    ]
    assert [line[0] for line in lines[1:]] == ["other", "q"]
    (line,) = within("workers", "q").stdout.splitlines()[1:]
    assert (line.split("\t")[1], line.split("\t")[3:]) == (held[0].worker, ["yes", "2", *[""] * 6])


def test_dead_letters(within: Program, queue: Queue) -> None:
    """Some or all dead letters are listed, redriven and purged."""
    first, second, *_ = bury(
        queue, b"a", b"b\x1b[31m\xff", b"c", b"d", reason="it\n\twas \x1b[2Jwrong"
    )
    lines = within("dead", "list", "q").stdout.splitlines()
    assert lines[0].split("\t") == ["id", "attempt", "since", "worker", "reason", "payload"]
    assert lines[2].split("\t")[:2] == [second, "1"]
    assert lines[2].split("\t")[4:] == ["it\\n\\twas \\x1b[2Jwrong", "b\\x1b[31m\\xff"]
    rows = [
        json.loads(line)
        for line in within("dead", "list", "q", "--jsonl", "--limit", "2").stdout.splitlines()
    ]
    assert [(row["id"], row.get("payload"), row.get("payload_hex")) for row in rows] == [
        (first, "a", None),
        (second, None, b"b\x1b[31m\xff".hex()),
    ]
    assert rows[0]["reason"] == "it\n\twas \x1b[2Jwrong"

    only = within("dead", "list", "q", "--reason", "x1b", "--kind", "none").stdout.splitlines()
    assert (len(only), len(within("dead", "list", "q", "--reason", "it").stdout.splitlines())) == (
        1,
        5,
    )
    counted = within("dead", "list", "q", "--groups").stdout.splitlines()
    assert counted[0].split("\t") == ["number", "last_hour", "last_day", "newest", "kind", "reason"]
    assert [line.split("\t")[:3] for line in counted[1:]] == [["4", "4", "4"]]
    assert within("dead", "list", "q", "--groups", "--kind", "none").stdout.count("\n") == 1
    assert json.loads(within("dead", "list", "q", "--groups", "--jsonl").stdout)["number"] == 4

    assert within("dead", "redrive", "q", second).stdout == "redriven 1\n"
    done = within("dead", "purge", "q", first, "absent")
    assert (done.returncode, done.stdout) == (1, "purged 1\n")
    assert done.stderr == "headrace: 1 of 2: no such dead letter\n"
    assert queue.counts() == Counts(enqueued=4, waiting=1, dead=2, dead_trimmed=1)
    assert within("dead", "redrive", "q").stdout == "redriven 2\n"
    assert waiting(queue) == [b"b\x1b[31m\xff", b"c", b"d"]
    bury(queue, b"e", b"f", b"g", b"h")
    assert within("dead", "purge", "q", "--yes").stdout == "purged 4\n"
    assert queue.counts() == Counts(enqueued=8, waiting=3, dead_trimmed=5)


# -- repair ----------------------------------------------------------------------------------------


def test_kind_and_duration_on_a_terminal(newest: Server, terminal: Terminal) -> None:
    """The columns appear for jobs that have ended. An empty column is left out."""
    with Queue("h", url=newest.url, history=10) as queue:
        queue.enqueue(b"a", headers={"kind": "mail"})
        queue.lease().complete()
        queue.enqueue(b"b")
    code, seen = terminal("list", "h", "--state", "ended")
    heading, row = re.sub(r"\x1b\[\d*m", "", seen).splitlines()[:2]
    assert (code, heading.split()[:6]) == (0, ["id", "state", "kind", "attempt", "when", "took"])
    assert re.search(r"completed +mail +1 .* ago +\d+ ms", row)
    heading, *_ = re.sub(
        r"\x1b\[\d*m", "", terminal("list", "h", "--state", "waiting")[1]
    ).splitlines()
    assert heading.split() == ["id", "state", "attempt", "when", "payload"]


def test_repair_on_a_terminal(queue: Queue, newest: Server, terminal: Terminal) -> None:
    """The command shows the damage and asks before it changes a key. With --yes it does not ask."""
    for answer, more in ((b"y\n", []), (b"", ["--yes"])):
        queue.enqueue(b"a")
        lease = queue.lease()
        with newest.client() as client:
            client.xdel("headrace:{q}:q:jobs", lease.claim.entry)
        code, seen = terminal("repair", "q", *more, answer=answer)
        assert (code, "mended" in seen, "found" in seen) == (0, True, bool(answer))
        assert queue.counts().lost == 0


def test_repair(within: Program, queue: Queue, newest: Server, terminal: Terminal) -> None:
    """The command lists the repairs by kind after it showed the damage. It names a foreign key."""
    queue.admin.pause()
    assert (done := within("repair", "q")).stdout == "mended\tnumber\n"
    assert (done.returncode, done.stderr) == (0, "headrace: nothing to mend in q\n")
    queue.admin.resume()
    queue.enqueue_many([b"a", b"b"])
    leases = queue.lease_many(2)
    with newest.client() as client:
        client.xdel("headrace:{q}:q:jobs", leases[0].claim.entry)
        client.xack("headrace:{q}:q:jobs", "workers", leases[1].claim.entry)
        done = within("repair", "q", "--dry-run")
        assert done.stdout == "found\tnumber\ndangling\t1\nstranded\t1\ndeleted\t1\n"
        code, seen = terminal("repair", "q", answer=b"n\n")
        assert (code, "dangling" in seen, "Mend this in q?" in seen, "mended" in seen) == (
            1,
            True,
            True,
            False,
        )
        assert queue.counts().lost == 1
        done = within("repair", "q")
        assert done.stdout == "mended\tnumber\ndangling\t1\nstranded\t1\ndeleted\t1\n"
        assert (done.returncode, done.stderr) == (0, "")
        assert queue.counts() == Counts(parked=1, enqueued=2, deleted=1)
        client.set("headrace:{q}:q:ids", "mine")
    done = within("repair", "q")
    assert (done.returncode, done.stdout) == (1, "")
    assert "headrace:{q}:q:ids" in done.stderr


# -- terminals and pipes ---------------------------------------------------------------------------


@pytest.mark.slow
def test_purging_everything_is_confirmed_on_a_terminal(
    newest: Server, queue: Queue, terminal: Terminal
) -> None:
    bury(queue, b"a", b"b")
    code, seen = on_a_terminal(["dead", "purge", "q"], newest.url, b"n\n")
    assert code != 0
    assert "Remove all 2 dead letters of q" in seen
    assert queue.counts().dead == 2
    code, seen = terminal("dead", "purge", "q", answer=b"y\n")
    assert code == 0
    assert "purged 2" in seen
    bury(queue, b"c")
    assert terminal("dead", "purge", "q", "--yes")[0] == 0
    assert queue.counts().dead == 0


@pytest.mark.slow
def test_on_a_terminal(newest: Server, queue: Queue, tmp_path: Path, terminal: Terminal) -> None:
    """A terminal gets a table and a progress bar with a rate. No wait for unknown lines happens."""
    (tmp_path / "jobs").write_text('{"payload": "[bold]x"}\n' * 100)
    code, seen = on_a_terminal(
        ["enqueue", "q", "--create", "--jsonl", "-f", str(tmp_path / "jobs")], newest.url
    )
    assert code == 0
    assert "100 jobs, " in seen
    assert "enqueued 100 jobs" in seen
    bury(queue, *[b"y"] * 101)
    code, seen = terminal("dead", "list", "q", "--limit", "1")
    assert code == 0
    assert "[bold]x" in seen
    code, seen = terminal("stats")
    assert code == 0
    assert re.search(r"queue +waiting +parked +leased", re.sub(r"\x1b\[\d*m", "", seen))
    code, seen = terminal("enqueue", "q", "--create")
    assert code == 2
    assert "nothing to enqueue" in seen


@pytest.mark.slow
def test_nobody_reads_on(newest: Server, queue: Queue) -> None:
    """A reader that stops early (`| head`) ends the program silently."""
    queue.enqueue_many([b"x" * 1000] * 500)
    bury(queue, *[b"x" * 1000] * 500)
    with started(
        "dead", "list", "q", "--jsonl", url=newest.url, stdout=PIPE, stderr=PIPE
    ) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        program.stdout.readline()
        program.stdout.close()
        said = program.stderr.read()
        assert program.wait(PATIENCE) == 141
    assert said == b""


# -- work ------------------------------------------------------------------------------------------

APP = """
import logging, os, time
from pathlib import Path
from headrace import AsyncWorker, Retry, Worker

worker = Worker(heartbeat=0.2, timeout=1.0)
nothing = Worker()
number = 3

@worker.handler("q", concurrency=1, retry=Retry(attempts=1))
def handle(job):
    if job.payload == b"pid":
        return str(os.getpid()).encode()
    if job.payload == b"hold":
        Path(f"held-{os.getpid()}").touch()
        running = next(one._running for one in (worker, slow) if one._running)
        while not job.lost and not (Path("go").exists() and running.stopping.is_set()):
            time.sleep(0.01)
    return b"done"

slow = Worker(heartbeat=20.0, timeout=100.0)
slow.handler("q", concurrency=1)(handle)

awaited = AsyncWorker(heartbeat=0.2, timeout=1.0)

failing = Worker()

@failing.handler("q", concurrency=3, retry=Retry(attempts=2, wait=0.1))
def fail(job):
    logging.getLogger("app").info("mine")
    raise ValueError("no")

named = AsyncWorker(name="mail", heartbeat=0.2, timeout=1.0)

@named.handler("q")
@awaited.handler("q")
async def handle_too(job):
    return str(os.getpid()).encode()
"""


class Working:
    """`headrace work` in the background."""

    def __init__(self, folder: Path, url: str, *arguments: str) -> None:
        (folder / "app.py").write_text(APP)
        (folder / "spoken.py").write_text(
            f"{APP}\nlogging.basicConfig(format='its own %(message)s', level='ERROR')"
        )
        self._log = folder / "work.log"
        with self._log.open("wb") as log:
            self.process = started("work", *arguments, url=url, stdout=log, stderr=log, cwd=folder)

    @property
    def said(self) -> str:
        return self._log.read_text()

    def pids(self) -> list[int]:
        """Return the ids of all processes that ever worked."""
        return [int(pid) for pid in re.findall(r"process (\d+) works", self.said)]

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def wait(self) -> int:
        return self.process.wait(PATIENCE)


@pytest.fixture
def working(newest: Server, tmp_path: Path) -> Iterator[Callable[..., Working]]:
    """Return a function that starts `headrace work`. Every started program is killed at the end."""
    made: list[Working] = []

    def start(*arguments: str, url: str = newest.url, **how: bool) -> Working:
        made.append(Working(tmp_path, url, *arguments, **how))
        return made[-1]

    yield start
    for one in made:
        with one.process:
            one.process.kill()  # its processes see that, and end


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_what_the_processes_log(working: Callable[..., Working], queue: Queue) -> None:
    """The log has the served queues, the failures and the jobs that the stop released, with their
    numbers."""
    work = working("app:failing", "--processes", "2")
    queue.enqueue(b"x", id="a")
    until(lambda: queue.counts().dead == 1, patience=PATIENCE)
    until(lambda: work.said.count("worker_started") == 2, patience=PATIENCE)
    work.signal(signal.SIGTERM)
    assert work.wait() == 0
    stamp = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}"
    for pid in work.pids():
        assert re.search(
            rf"(?m)^{stamp} {pid} INFO worker_started: worker-\w+ serves 'q' with app\.fail, 3 at once",
            work.said,
        )
        assert re.search(
            rf"(?m)^{stamp} {pid} INFO worker_stopped: worker-\w+; given back: nothing", work.said
        )
    job = "job a of queue 'q'"
    assert re.search(
        rf"(?m)^{stamp} \d+ WARNING job_failed: {job} failed on attempt 1 of 2, and runs again in",
        work.said,
    )
    assert re.search(rf"(?m)^{stamp} \d+ INFO app: mine$", work.said)
    assert re.search(
        rf"(?m)^{stamp} \d+ ERROR job_dead_lettered: {job} is dead after attempt 2 of 2: ",
        work.said,
    )


@pytest.mark.slow
def test_log_lines_as_json(working: Callable[..., Working], queue: Queue) -> None:
    """All lines are JSON, including lines of the supervisor and of other loggers."""
    work = working("app:failing", "--log-format", "json", "--log-level", "warning")
    queue.enqueue(b"x", id="a")
    until(lambda: "job_dead_lettered" in work.said, "the line of its end", PATIENCE)
    work.process.send_signal(signal.SIGTERM)
    assert work.wait() == 0
    lines = [json.loads(line) for line in work.said.splitlines()]
    assert [line["event"] for line in lines] == [
        "process_ready",
        "job_failed",
        "job_dead_lettered",
        "stopping",
    ]
    ready, failed, _, _ = lines
    assert {name: failed[name] for name in ("level", "queue", "job_id", "attempt", "error", "process")} == {
        "level": "warning", "queue": "q", "job_id": "a", "attempt": 1,
        "error": "ValueError: no", "process": ready["pid"],
    }  # fmt: skip
    assert "in fail" in failed["traceback"]


def test_json_lines_have_no_empty_fields(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Lines of the program and of other loggers leave out empty fields."""
    monkeypatch.setattr(console, "_in_json", True)
    console.say("stops", event="stopping", pid=None)
    console.say("a line of no event")
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    own = {"time", "level", "logger", "message", "process"}
    assert [line.keys() - own for line in lines] == [{"event"}, set()]


def test_a_viewer_is_refused_in_words(within: Program, queue: Queue, newest: Server) -> None:
    """The message leaves out the place in a script."""
    queue.enqueue(b"x", id="a")
    with newest.client() as client:
        commands = ["+@read", "+@connection", "+@scripting"]
        client.acl_setuser(
            "viewer", enabled=True, nopass=True, keys=["*"], channels=["*"], commands=commands
        )
        try:
            refused_to = within(
                "cancel", "q", "a", "--url", newest.url.replace("unix://", "unix://viewer:x@")
            )
        finally:
            client.acl_deluser("viewer")
    assert refused_to.returncode == 1
    assert re.search("permission|can't run", refused_to.stderr)
    assert not re.search("user_script|f_[0-9a-f]{40}|script: [0-9a-f]", refused_to.stderr)


def test_shares_of_a_queue_that_is_not_fair(within: Program, queue: Queue, newest: Server) -> None:
    queue.enqueue(b"x")
    done = within("shares", "q")
    assert (done.returncode, done.stdout) == (1, "")
    assert (
        done.stderr
        == "headrace: q is not fair: declare it with fair=, in the worker that serves it\n"
    )
    with Queue("f", url=newest.url, fair="tenant") as fair:
        fair.enqueue(b"x", headers={"tenant": "ada"})
        assert within("shares", "f").returncode == 1  # nobody that serves it has declared it
        fair.lease()
        assert within("shares", "f").stdout.splitlines()[1].startswith("ada\t1\t0\t")


@pytest.mark.slow
def test_an_application_with_logging_of_its_own(
    working: Callable[..., Working], queue: Queue
) -> None:
    work = working("spoken:failing", "--log-format", "json", "--log-level", "debug")
    queue.enqueue(b"x")
    until(lambda: "its own job_dead_lettered" in work.said, "the line of its end", PATIENCE)
    work.signal(signal.SIGTERM)
    assert work.wait() == 0
    assert (
        "spoken:failing has set up logging itself: --log-level and --log-format change nothing there"
        in work.said
    )
    assert re.findall(r"(?m)^its own (\w+)", work.said) == ["job_dead_lettered"]


@pytest.mark.slow
def test_processes_have_names_of_their_own(working: Callable[..., Working], queue: Queue) -> None:
    """A worker with a name gets a number after it, which is the same after a death."""

    def names() -> list[str]:
        return sorted(x.name.partition(".")[0] for x in queue.admin.workers() if x.alive)

    work = working("app:named", "--processes", "2")
    until(lambda: names() == ["mail-1", "mail-2"], "two workers", PATIENCE)
    os.kill(work.pids()[0], signal.SIGKILL)
    until(lambda: len(work.pids()) == 3, "a third process", PATIENCE)
    receipts = queue.enqueue_many([b"pid"] * 10)
    assert all(queue.result(receipt.id, PATIENCE) for receipt in receipts)
    until(lambda: names() == ["mail-1", "mail-2"], "two workers", PATIENCE)
    work.signal(signal.SIGTERM)
    assert work.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ["worker", "awaited"])
def test_a_killed_process_is_replaced(
    working: Callable[..., Working], queue: Queue, name: str
) -> None:
    """Two processes work. One is killed, and another is started. SIGTERM ends all of them with
    status 0."""
    work = working(f"app:{name}", "--processes", "2")
    until(lambda: len(work.pids()) == 2, "two processes", PATIENCE)
    first, second = work.pids()
    os.kill(first, signal.SIGKILL)
    until(lambda: len(work.pids()) == 3, "a third process", PATIENCE)
    assert f"process {first} was killed by SIGKILL; another is started" in work.said
    receipts = queue.enqueue_many([b"pid"] * 50)
    found = {int(queue.result(receipt.id, PATIENCE) or 0) for receipt in receipts}
    assert found <= {second, work.pids()[2]}
    work.signal(signal.SIGTERM)
    assert work.wait() == 0
    assert not any(map(alive, work.pids()))
    assert queue.counts() == Counts(enqueued=50, completed=50)


@pytest.mark.slow
def test_the_queue_is_told_of_a_death(
    working: Callable[..., Working], queue: Queue, tmp_path: Path
) -> None:
    """A killed process is reported at once. Its job runs in the next process long before its
    worker's timeout."""
    work = working("app:slow")
    queue.enqueue(b"hold")
    until(lambda: list(tmp_path.glob("held-*")), "a job under way", PATIENCE)
    until(work.pids, "the line that names the process", PATIENCE)
    os.kill(work.pids()[0], signal.SIGKILL)
    # of 100 s
    until(lambda: len(list(tmp_path.glob("held-*"))) == 2, "the job in another process", 50.0)
    assert [state.job.attempt for state in queue.admin.running()] == [2]
    (tmp_path / "go").touch()
    work.signal(signal.SIGTERM)
    assert work.wait() == 0


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("name", ["worker", "awaited"])
def test_a_burst(working: Callable[..., Working], queue: Queue, name: str) -> None:
    """The program ends when all jobs are done, and at once if there are none."""
    queue.enqueue_many([b"x"] * 50)
    queue.enqueue(b"late", delay=0.5)
    work = working(f"app:{name}", "--processes", "2", "--burst")
    assert work.wait() == 0
    assert queue.counts() == Counts(enqueued=51, completed=51)
    assert working(f"app:{name}", "--burst").wait() == 0
    assert "has stopped by itself" in work.said
    assert queue.admin.workers() == []


def asked(port: str, path: str) -> tuple[int, str]:
    """Read the status and the text of a worker's health."""
    connection = HTTPConnection("127.0.0.1", int(port), timeout=PATIENCE)
    with closing(connection):
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


@pytest.mark.ci
@pytest.mark.slow
def test_health(working: Callable[..., Working], own: Server, tmp_path: Path) -> None:
    """The program is live while it runs. It is ready once all processes are, while the server
    answers and no stop was asked.
    """
    work = working("app:worker", "--processes", "2", "--health-port", "0", url=own.url)
    until(lambda: "health is served on port" in work.said, patience=PATIENCE)
    (port,) = re.findall(r"health is served on port (\d+)", work.said)
    assert asked(port, "/live") == (200, "ok\n")
    assert asked(port, "/metrics")[0] == 404
    until(lambda: asked(port, "/ready") == (200, "ok\n"), "it is ready", PATIENCE)
    assert len(work.pids()) == 2
    with Queue("q", url=own.url) as queue:
        queue.enqueue(b"hold")
        until(lambda: list(tmp_path.glob("held-*")), "a job under way", PATIENCE)
    own.kill()
    status, reason = asked(port, "/ready")
    assert status == 503
    assert "unix:" in reason
    assert asked(port, "/live")[0] == 200
    work.signal(signal.SIGTERM)
    until(lambda: "stopping" in work.said, patience=PATIENCE)
    assert asked(port, "/ready") == (503, "stopping\n")
    (tmp_path / "go").touch()
    work.wait()


@pytest.mark.ci
@pytest.mark.slow
def test_several_workers(working: Callable[..., Working], queue: Queue) -> None:
    """Each worker has its own processes. If one can't be loaded, all of them end."""
    work = working("app:worker", "app:named", "--processes", "2")
    until(lambda: len(work.pids()) == 4, "four processes", PATIENCE)
    assert (
        sorted(re.findall(r"works on (\S+)", work.said)) == ["app:named"] * 2 + ["app:worker"] * 2
    )
    names = {"mail-1", "mail-2"}
    until(
        lambda: names < {one.name.partition(".")[0] for one in queue.admin.workers()},
        "their names",
        PATIENCE,
    )
    work.signal(signal.SIGTERM)
    assert work.wait() == 0
    work = working("app:worker", "app:number", "--processes", "2")
    assert work.wait() == 2
    assert "app:number: it is of type int" in work.said
    assert queue.admin.workers() == []


@pytest.mark.slow
def test_reload(working: Callable[..., Working], queue: Queue, tmp_path: Path) -> None:
    """A change restarts the processes once their jobs have ended. A module that does not load waits
    for the next change.
    """
    pytest.importorskip("watchfiles")
    work = working("app:worker", "--reload")
    until(lambda: len(work.pids()) == 1, "a process", PATIENCE)
    (tmp_path / "app.py").write_text(APP + "\nnew = 1\n")
    until(lambda: len(work.pids()) == 2, "another process", PATIENCE)
    assert not alive(work.pids()[0])
    assert "app.py changed: processes are started again" in work.said
    (tmp_path / "app.py").write_text("no Python")
    until(lambda: "app:worker could not be imported" in work.said, "it is refused", PATIENCE)
    assert not alive(work.pids()[1])
    (tmp_path / "app.py").write_text(APP)
    until(lambda: len(work.pids()) == 3, "a third process", PATIENCE)
    receipt = queue.enqueue(b"pid")
    assert queue.result(receipt.id, PATIENCE) == str(work.pids()[2]).encode()
    work.signal(signal.SIGTERM)
    assert work.wait() == 0


@pytest.mark.slow
def test_metrics(working: Callable[..., Working], queue: Queue) -> None:
    """Each process serves metrics in the format of Prometheus."""
    pytest.importorskip("opentelemetry.exporter.prometheus")
    work = working("app:worker", "--metrics-port", "0")
    receipt = queue.enqueue(b"x")
    assert queue.result(receipt.id, PATIENCE) == b"done"
    (port,) = re.findall(r"metrics are served on port (\d+)", work.said)
    until(
        lambda: "messaging_process_duration" in asked(port, "/metrics")[1],
        "what was measured",
        PATIENCE,
    )
    work.signal(signal.SIGTERM)
    assert work.wait() == 0


@pytest.mark.slow
def test_the_first_signal_finishes(
    working: Callable[..., Working], queue: Queue, tmp_path: Path
) -> None:
    work = working("app:worker")
    queue.enqueue_many([b"hold", b"late"])
    until(lambda: list(tmp_path.glob("held-*")), "a job under way", PATIENCE)
    work.signal(signal.SIGINT)
    until(lambda: "stopping" in work.said, patience=PATIENCE)
    assert work.process.poll() is None
    # the handler waits for the signal, too: that is sent when the program has said so
    (tmp_path / "go").touch()
    assert work.wait() == 0
    assert queue.counts() == Counts(waiting=1, enqueued=2, completed=1)  # what had not begun stays


@pytest.mark.slow
def test_the_second_signal_gives_back(
    working: Callable[..., Working], queue: Queue, tmp_path: Path
) -> None:
    """Both signals come at once, and neither swallows the other."""
    work = working("app:worker", "--processes", "2")
    until(lambda: len(work.pids()) == 2, patience=PATIENCE)
    queue.enqueue_many([b"hold", b"hold"])
    until(lambda: len(list(tmp_path.glob("held-*"))) == 2, "two jobs under way", PATIENCE)
    work.signal(signal.SIGTERM)
    until(lambda: "stopping" in work.said, patience=PATIENCE)
    work.signal(signal.SIGTERM)
    assert work.wait() == 0
    assert queue.counts() == Counts(enqueued=2, parked=2)
    assert [item.job.attempt for item in queue.admin.waiting()] == [1, 1]


@pytest.mark.slow
def test_a_killed_supervisor(working: Callable[..., Working], queue: Queue) -> None:
    """After the supervisor was killed, its processes finish their jobs and end. None is left."""
    work = working("app:worker", "--processes", "2")
    until(lambda: len(work.pids()) == 2, patience=PATIENCE)
    work.process.kill()
    until(lambda: not any(map(alive, work.pids())), "the orphans' end", PATIENCE)
    assert queue.admin.workers() == []


def test_what_is_no_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each mistake has its own message."""
    (tmp_path / "app_of_none.py").write_text(APP)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_URL", NOWHERE)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for target, words in {
        "app_of_none": "MODULE:NAME",
        "app_of_none.py:worker": "not of a file",
        "absent:worker": "no module 'absent' in ",
        "app_of_none:wrong": "it has awaited, failing, named, nothing, slow, worker",
        "app_of_none:number": "of type int; give a headrace.Worker, AsyncWorker, Tasks or AsyncTasks",
        "app_of_none:Worker": "the class Worker; give a headrace.Worker, AsyncWorker, Tasks or AsyncTasks",
        "app_of_none:nothing": "no handlers",
    }.items():
        with pytest.raises(ConfigurationError, match=re.escape(words)):
            load(target)


def test_tasks_have_a_worker_made_for_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker uses the tasks' own server. Tasks that need asyncio get an asynchronous worker."""
    (tmp_path / "app_of_tasks.py").write_text(
        "from headrace import AsyncTasks, AsyncWorker, Tasks\n"
        f"plain, mixed, twin, none = (kind('q', {NOWHERE!r}) for kind in (Tasks, Tasks, AsyncTasks, Tasks))\n"
        "def one(): ...\nasync def two(): ...\n"
        "[tasks.task(one) for tasks in (plain, mixed, twin)]\nmixed.task(two)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    kinds = {"plain": Worker, "mixed": AsyncWorker, "twin": AsyncWorker}
    for name, kind in kinds.items():
        worker = load(f"app_of_tasks:{name}")
        assert type(worker) is kind
        assert set(worker.handlers["q"].kinds) == ({"one", "two"} if name == "mixed" else {"one"})
        assert worker._address.target == NOWHERE
    with pytest.raises(ConfigurationError, match="no handlers"):
        load("app_of_tasks:none")


@pytest.mark.slow
def test_tasks_are_worked_on(working: Callable[..., Working], queue: Queue, tmp_path: Path) -> None:
    (tmp_path / "mails.py").write_text(
        f"from headrace import Tasks\ntasks = Tasks({queue.name!r})\n"
        "@tasks.task\ndef twice(n: int) -> int:\n    return 2 * n\n"
    )
    receipt = queue.enqueue(b'{"n":4}', headers={"kind": "twice"})
    assert working("mails:tasks", "--burst").wait() == 0
    assert receipt.result() == b"8"


def test_django_is_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Django is set up before the module is imported, if the environment names its settings.
    Without Django nothing is set up.
    """
    (tmp_path / "app_of_django.py").write_text(
        APP + "import sys\nassert sys.modules['django'].ready"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE_URL", NOWHERE)
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "mysite.settings")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "django", None)
    with pytest.raises(AttributeError):
        load("app_of_django:worker")
    django = ModuleType("django")
    monkeypatch.setattr(django, "setup", lambda: setattr(django, "ready", True), raising=False)
    monkeypatch.setitem(sys.modules, "django", django)
    assert load("app_of_django:worker").handlers


@pytest.mark.slow
def test_one_line_for_all_processes(working: Callable[..., Working]) -> None:
    work = working("app:number", "--processes", "2")
    assert work.wait() == 2
    assert re.fullmatch(r"headrace: app:number: it is of type int; [^\n]*\n", work.said), work.said


@pytest.mark.slow
def test_a_module_that_fails(working: Callable[..., Working], tmp_path: Path) -> None:
    """The module's own traceback is printed, because it shows the cause."""
    (tmp_path / "broken.py").write_text("import absent_too\n")
    work = working("broken:worker")
    assert work.wait() == 2
    assert "No module named 'absent_too'" in work.said
    assert "broken:worker could not be imported" in work.said


@pytest.mark.slow
def test_a_worker_without_its_server(working: Callable[..., Working]) -> None:
    work = working("app:worker", "--processes", "2", "--url", NOWHERE)
    assert work.wait() == 1
    assert re.fullmatch(r"headrace: redis://127.0.0.1:1/0: [^\n]*refused[^\n]*\n", work.said), (
        work.said
    )


@pytest.fixture
def own(newest: Server) -> Iterator[Server]:
    """Start a server that may go away."""
    with Server(newest.binary) as server:
        yield server


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("away", ["gone", "frozen"])
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_it_stops_without_its_server(
    working: Callable[..., Working], own: Server, tmp_path: Path, away: str, busy: bool
) -> None:
    """The program stops within moments. Its status is 0 if it held no job. Otherwise it names the
    held jobs."""
    work = working("app:worker", "--processes", "2", url=own.url)
    until(lambda: len(work.pids()) == 2, "two processes", PATIENCE)
    with Queue("q", url=own.url) as queue:
        until(lambda: len(queue.admin.workers()) == 2, "two workers", PATIENCE)
        if busy:
            receipt = queue.enqueue(b"hold")
            until(lambda: list(tmp_path.glob("held-*")), "a job under way", PATIENCE)
    if away == "gone":
        own.kill()
    else:
        os.kill(own.pid, signal.SIGSTOP)
    work.signal(signal.SIGTERM)
    until(lambda: "stopping" in work.said, patience=PATIENCE)
    (tmp_path / "go").touch()
    began = time.monotonic()
    assert work.wait() == busy
    assert time.monotonic() - began < 15.0  # two as a rule, and a busy machine; it was 25 at least
    if busy:
        assert re.search(rf"1 job.*stay leased.*q {receipt.id}", work.said)
        assert re.search(r"headrace: process \d+ ended with status 1", work.said)


@pytest.mark.slow
def test_it_starts_while_the_server_stands_still(
    working: Callable[..., Working], own: Server
) -> None:
    with Queue("q", url=own.url) as queue:
        receipt = queue.enqueue(b"pid")
        os.kill(own.pid, signal.SIGSTOP)
        try:
            work = working("app:worker", url=f"{own.url}&socket_timeout=1")
            until(work.pids, "it begins", PATIENCE)
        finally:
            os.kill(own.pid, signal.SIGCONT)
        assert queue.result(receipt.id, PATIENCE) == str(work.pids()[0]).encode()
    work.signal(signal.SIGTERM)
    assert work.wait() == 0


@pytest.mark.slow
def test_an_outage_that_is_too_long(working: Callable[..., Working], own: Server) -> None:
    """All processes end, and no others are started."""
    work = working("app:worker", "--processes", "2", "--max-outage", "0.5", url=own.url)
    until(lambda: len(work.pids()) == 2, "two processes", PATIENCE)
    with Queue("q", url=own.url) as queue:
        until(lambda: len(queue.admin.workers()) == 2, "two workers", PATIENCE)
    own.kill()
    assert work.wait() == 1
    assert len(work.pids()) == 2
    assert "another is started" not in work.said


# -- the program itself ----------------------------------------------------------------------------


def test_version_and_help(within: Program) -> None:
    assert within("--version").stdout == f"{package.__version__}\n"
    done = within()
    assert done.returncode == 0
    commands = ("enqueue", "work", "stats", "dead", "repair", "demo")
    assert all(re.search(rf"^  {name} ", done.stdout, re.MULTILINE) for name in commands)


@pytest.mark.long
def test_the_console_script(tmp_path: Path) -> None:
    """The package installs the same program."""
    script = Path(sys.executable).with_name("headrace")
    run = subprocess.run(
        [script, "--version"], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert re.fullmatch(r"\d+\.\d+\.\d+\S*\n", run.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("absent", ["typer", "rich"])
def test_without_the_extra(absent: str) -> None:
    code = (
        f"import sys; sys.modules[{absent!r}] = None; from headrace.console.cli import main; main()"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=False
    )
    assert run.returncode == 1
    assert run.stderr == f"headrace: the command line is an extra: {install_command('cli')}\n"


@pytest.mark.slow
def test_it_starts_without_what_draws_tables() -> None:
    """The library for tables takes as long to import as a short command."""
    drawing = "{'rich.console', 'rich.progress', 'textual'}"
    code = f"import sys, headrace.console.cli.app; print(sorted({drawing} & set(sys.modules)))"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "[]\n"


def test_the_library_does_without_the_extra() -> None:
    code = "import sys, headrace; print(sorted({'typer', 'rich', 'click'} & sys.modules.keys()))"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    assert run.stdout == "[]\n"


def test_a_moment_that_no_calendar_has(within: Program, queue: Queue, newest: Server) -> None:
    """The time is shown as a number. The other jobs are shown as usual."""
    with newest.client() as client:
        queue.enqueue(b"x", id="soon", delay=60)
        queue.enqueue(b"x", id="far", delay=60)
        client.zadd("headrace:{q}:q:delayed", {"far": 253_402_300_800_000})
        done = within("list", "q", "--state", "delayed")
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["id", "soon", "far"]
    assert "\t253402300800\t" in done.stdout.splitlines()[2]


@pytest.mark.slow
@pytest.mark.sampled
@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_locale_without_utf_8(queue: Queue, newest: Server, encoding: str) -> None:
    """Characters outside the locale are escaped, and JSON stays JSON."""
    name = "naïve-😀-☃"
    env = {
        "LC_ALL": "C",
        "PYTHONCOERCECLOCALE": "0",
        "PYTHONUTF8": "0",
        "PYTHONIOENCODING": encoding,
    }
    bury(queue, b"x")
    queue.enqueue("☃".encode(), id=name)

    def seen(*arguments: str) -> str:
        with started(*arguments, url=newest.url, env=env, stdout=PIPE, stderr=PIPE) as running:
            out, err = running.communicate(timeout=PATIENCE)
        assert (running.returncode, err) == (0, b"")
        return out.decode(encoding)

    assert name.encode(encoding, "backslashreplace").decode(encoding) in seen("list", "q")
    assert name in [
        json.loads(line)["id"] for line in seen("list", "q", "--json").split("\n") if line
    ]
    assert "\tx\n" in seen("dead", "list", "q")
    assert name.encode(encoding, "backslashreplace").decode(encoding) in seen("show", "q", name)
    assert json.loads(seen("list", "q", "--state", "waiting", "--json"))["payload"] == "☃"
    queue.cancel(name)
    seen("enqueue", "q", "☃ again")
    assert json.loads(seen("list", "q", "--state", "waiting", "--json"))["payload"] == "☃ again"
