"""`headrace demo`: a few modules of the real thing, and that what is not as promised does not go unnoticed."""

from __future__ import annotations

import io
import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE
from typing import IO

import attrs
import pytest
from rich.console import Console

from headrace import Counts, Queue
from headrace._cli import demo
from headrace._cli.demo import facts, modules
from headrace._cli.demo_report import Evidence, Killed, Started, read_log, report, totals
from tests.support.awaiting import until
from tests.support.program import Script, environment, started
from tests.support.servers import Server

PATIENCE = 240.0  # seconds
LIMIT = 100
TRIES = 5  # so few jobs may be done on a busy machine before the demo has looked, and says so

ONE, OTHER = facts(b"def f(a): pass\n").decode(), facts(b"class C: pass\n").decode()
GOOD = Evidence(
    expected={"a": ONE, "b": OTHER, "c": ONE},
    results={"a": ONE, "b": OTHER, "c": ONE},
    counts=Counts(enqueued=3, completed=3),
    runs=[Started("a", 1), Started("b", 1), Started("b", 2), Started("c", 1)],
    completions=["a", "b", "c"],
    killed=Killed("worker-1", 4711, leased=2, completed=1),
)


def run(*arguments: str) -> str:
    """Run a small demo to its good end, in which a worker was killed; what it says."""
    for _ in range(TRIES):
        with started("demo", "--limit", str(LIMIT), *arguments, url=None, stdout=PIPE, stderr=PIPE) as running:
            out, err = running.communicate(timeout=PATIENCE)
        assert (running.returncode, err) == (0, b"")
        if b"Nobody was killed: so few jobs were done too soon." not in out:
            break
    return out.decode()


def judged(said: str) -> None:
    """The demo told what it promises to tell."""
    rows = dict(re.findall(r"^ (\w[\w ]*?) +([\d,]+) *$", said, re.MULTILINE))
    assert (rows["enqueued"], rows["completed"]) == (str(LIMIT), str(LIMIT))
    assert [rows[name] for name in ("waiting", "leased", "dead", "lost", "completed twice")] == ["0"] * 5
    compared = re.findall(r"^ (modules|lines|functions|classes|digest of .*?) +(\S+) +(\S+) *$", said, re.MULTILINE)
    assert len(compared) == 5
    assert all(queued == single for _, queued, single in compared)
    killed = re.search(r"worker-\d \(process \d+\) was killed with SIGKILL after (\d+) completions, when (\d+)", said)
    assert killed is not None, said
    assert LIMIT / 2 <= int(killed[1]) < LIMIT
    assert int(killed[2]) > 0
    assert said.endswith("Lost 0, completed twice 0, and the results are the same.\n")


@pytest.mark.slow
def test_on_a_private_server() -> None:
    judged(run())


@pytest.mark.slow
def test_on_a_server_of_yours(newest: Server) -> None:
    """What was there is left alone, and nothing else is left behind."""
    with Queue("modules", url=newest.url) as queue, newest.client() as client:
        queue.enqueue(b"mine")
        before = set(client.keys())
        judged(run("--url", newest.url))
        assert set(client.keys()) == before
        assert queue.counts() == Counts(enqueued=1, waiting=1)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(newest: Server, tmp_path: Path, number: int, code: int) -> None:
    """Its processes end, and its keys are gone."""
    with newest.client() as client, (tmp_path / "said").open("wb") as said:
        with started("demo", "--url", newest.url, url=None, stdout=said, stderr=said) as demo:
            until(lambda: client.keys("demo-*:jobs"), "its queue", PATIENCE)
            demo.send_signal(number)
            assert demo.wait(PATIENCE) == code
        assert client.keys() == []
        until(lambda: len(client.client_list()) == 1, "the end of its processes", PATIENCE)
    assert "Traceback" not in (tmp_path / "said").read_text()


def test_interrupted_between_two_starts(monkeypatch: pytest.MonkeyPatch, newest: Server) -> None:
    """A process that has just been started is known, and ended."""
    start, begun = demo.Process.start, list[demo.Process]()

    def interrupted(arguments: Sequence[str], output: IO[bytes]) -> demo.Process:
        begun.append(start(arguments, output))
        if "single" in arguments:
            os.kill(os.getpid(), signal.SIGINT)
        return begun[-1]

    monkeypatch.setattr(demo.Process, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo.demo(newest.url, LIMIT)
    assert len(begun) >= 2
    assert [process for process in begun if process.popen.returncode is None] == []
    with newest.client() as client:
        assert client.keys() == []


ALTERED = """
import attrs
from headrace._cli import demo
from headrace._cli import main

gather = demo.Run.evidence

def altered(self):
    evidence = gather(self)
    assert evidence.differences() == []
    name = next(iter(evidence.results))
    return attrs.evolve(evidence, results={**evidence.results, name: result})

demo.Run.evidence = altered
main()
"""


def test_a_difference_is_found(newest: Server) -> None:
    """One result of a real run is altered: the exit code says so."""
    arguments = ["demo", "--url", newest.url, "--limit", "12"]
    with Script(f"result = {ONE!r}\n{ALTERED}", arguments, env=environment(None)) as running:
        out, err = running.communicate(timeout=PATIENCE)
    assert (running.returncode, err) == (1, b"")
    assert b"DIFFERENT: 1 jobs with another result than the single pass, such as " in out


def test_good_evidence() -> None:
    out = io.StringIO()
    assert GOOD.differences() == []
    assert report(Console(file=out, width=120), GOOD, 1.0) == 0
    assert "DIFFERENT" not in out.getvalue()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"results": {"a": ONE, "b": None, "c": ONE}}, "1 jobs without a result, such as b"),
        ({"results": {"a": ONE, "c": ONE}}, "1 jobs without a result, such as b"),
        ({"results": {"a": OTHER, "b": OTHER, "c": ONE}}, "another result than the single pass, such as a"),
        ({"results": {**GOOD.results, "d": ONE}}, "another result than the single pass, such as d"),
        ({"completions": ["a", "b", "c", "a"]}, "1 jobs completed twice, such as a"),
        ({"completions": ["a", "b", "c", "d"]}, "completed that nobody enqueued, such as d"),
        ({"completions": ["a", "b"]}, "whose completion nobody saw, such as c"),
        ({"counts": Counts(enqueued=3, completed=2)}, "lost: 1 instead of 0"),
        ({"counts": Counts(enqueued=3, completed=2, dead=1)}, "still in the queue: 1 instead of 0"),
        ({"counts": Counts(enqueued=3, completed=2, cancelled=1)}, "completed: 2 instead of 3"),
        ({"counts": Counts(enqueued=4, completed=4)}, "enqueued: 4 instead of 3"),
    ],
)
def test_what_is_different(change: dict[str, object], words: str) -> None:
    """Everything that is not as promised is named, and makes the exit code 1."""
    wrong = attrs.evolve(GOOD, **change)
    out = io.StringIO()
    assert any(words in one for one in wrong.differences()), wrong.differences()
    assert report(Console(file=out, width=120), wrong, 1.0) == 1
    assert "DIFFERENT: " in out.getvalue()


def test_facts() -> None:
    """Always the same of the same source, and others of any other."""
    source = b"class A:\n    def f(self): pass\n    async def g(self): pass\ndef h(x, y): pass\n"
    assert facts(source) == facts(source)
    assert totals({"m": facts(source).decode()}) == {
        "modules": "1", "unparsable": "0", "lines": "4", "functions": "3", "classes": "1",
        "digest of all results": totals({"m": facts(source).decode()})["digest of all results"],
    }  # fmt: skip
    assert facts(source) != facts(source.replace(b"x, y", b"x"))
    assert totals({"m": facts(b"def\n").decode()})["unparsable"] == "1"


def test_modules(tmp_path: Path) -> None:
    for name in ("b.py", "a/c.py", "a/data.txt", "site-packages/x.py", "a/__pycache__/y.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert modules(tmp_path) == ["a/c.py", "b.py"]


def test_half_a_line_of_a_log(tmp_path: Path) -> None:
    """A worker that was killed may have left one."""
    (tmp_path / "log").write_bytes(b'["a", 1]\n["b"')
    assert read_log(tmp_path / "log") == [Started("a", 1)]
    assert read_log(tmp_path / "none") == []
