"""The command `headrace demo`. A few parts run for real, and a broken promise does not go
unnoticed."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE
from typing import IO

import attrs
import pytest

from headrace import Counts, Queue
from headrace.console.cli import demo
from headrace.console.cli.demo import Evidence, facts, modules, report, totals
from tests.support.awaiting import until
from tests.support.program import Script, environment, started
from tests.support.servers import Server

PATIENCE = 240.0  # seconds
LIMIT = 100
TRIES = 5  # so few jobs may be done on a busy machine before the demo has looked, and says so

ONE, OTHER = facts(b"def f(a): pass\n"), facts(b"class C: pass\n")
GOOD = Evidence(
    expected={"a": ONE, "b": OTHER, "c": ONE},
    results={"a": ONE, "b": OTHER, "c": ONE},
    counts=Counts(enqueued=3, completed=3),
    completions=["a", "b", "c"],
)


def run(*arguments: str) -> str:
    """Run a small demo until it ends well after a worker was killed, and return its output."""
    for _ in range(TRIES):
        with started(
            "demo", "--limit", str(LIMIT), *arguments, url=None, stdout=PIPE, stderr=PIPE
        ) as running:
            out, err = running.communicate(timeout=PATIENCE)
        assert (running.returncode, err) == (0, b"")
        if b"Nobody was killed: so few jobs were done too soon." not in out:
            break
    return out.decode()


def judged(said: str) -> None:
    """The demo prints each line that it promises."""
    rows = dict(re.findall(r"^(\w[\w ]*)\t(\d+)$", said, re.MULTILINE))
    assert (rows["enqueued"], rows["completed"]) == (str(LIMIT), str(LIMIT))
    assert [rows[name] for name in ("waiting", "leased", "dead", "lost", "completed twice")] == [
        "0"
    ] * 5
    compared = re.findall(r"^(\w+)\t(\w+)\t(\w+)$", said, re.MULTILINE)
    assert [name for name, *_ in compared] == [
        "modules",
        "lines",
        "functions",
        "classes",
        "unparsable",
        "digest",
    ]
    assert all(queued == single for _, queued, single in compared)
    killed = re.search(
        r"worker-\d \(process \d+\) was killed with SIGKILL after (\d+) completions, when (\d+)",
        said,
    )
    assert killed is not None, said
    assert LIMIT / 2 <= int(killed[1]) < LIMIT
    assert int(killed[2]) > 0
    reclaimed = re.search(r"^(\d+) jobs were reclaimed\.$", said, re.MULTILINE)
    assert reclaimed is not None, said
    assert int(reclaimed[1]) > 0
    assert said.endswith("Lost 0, completed twice 0, and the results are the same.\n")


@pytest.mark.ci
@pytest.mark.slow
def test_on_a_private_server() -> None:
    judged(run())


@pytest.mark.ci
@pytest.mark.slow
def test_on_a_server_of_yours(newest: Server) -> None:
    """The demo leaves older data alone, and leaves nothing else behind."""
    with Queue("modules", url=newest.url) as queue, newest.client() as client:
        queue.enqueue(b"mine")
        before = set(client.keys())
        judged(run("--url", newest.url))
        assert set(client.keys()) == before
        assert queue.counts() == Counts(enqueued=1, waiting=1)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted(newest: Server, tmp_path: Path, number: int, code: int) -> None:
    """The processes end, and their keys are gone."""
    with newest.client() as client, (tmp_path / "said").open("wb") as said:
        with started("demo", "--url", newest.url, url=None, stdout=said, stderr=said) as demo:
            until(lambda: client.keys("demo-*:jobs"), "its queue", PATIENCE)
            demo.send_signal(number)
            assert demo.wait(PATIENCE) == code
        assert client.keys() == []
        until(lambda: len(client.client_list()) == 1, "the end of its processes", PATIENCE)
    assert "Traceback" not in (tmp_path / "said").read_text()


def test_interrupted_between_two_starts(monkeypatch: pytest.MonkeyPatch, newest: Server) -> None:
    """A process that was just started is known and ended."""
    start, begun = demo.Process.start, list[demo.Process]()

    def interrupted(arguments: Sequence[str], output: IO[bytes]) -> demo.Process:
        begun.append(start(arguments, output))
        if "worker-2" in arguments:
            os.kill(os.getpid(), signal.SIGINT)
        return begun[-1]

    monkeypatch.setattr(demo.Process, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        demo.run_demo(newest.url, LIMIT)
    assert len(begun) >= 2
    assert [process for process in begun if process.popen.returncode is None] == []
    with newest.client() as client:
        assert client.keys() == []


ALTERED = """
import attrs
from headrace.console.cli import demo
from headrace.console.cli import main

report = demo.report

def altered(evidence):
    assert evidence.differences() == []
    name = next(iter(evidence.results))
    return report(attrs.evolve(evidence, results={**evidence.results, name: result}))

demo.report = altered
main()
"""


@pytest.mark.slow
def test_a_difference_is_found(newest: Server) -> None:
    """One result of a real run is changed. The exit code shows it."""
    arguments = ["demo", "--url", newest.url, "--limit", "12"]
    with Script(f"result = {ONE!r}\n{ALTERED}", arguments, env=environment(None)) as running:
        out, err = running.communicate(timeout=PATIENCE)
    assert (running.returncode, err) == (1, b"")
    assert b"DIFFERENT: 1 jobs with another result, such as " in out


def test_good_evidence(capsys: pytest.CaptureFixture[str]) -> None:
    assert GOOD.differences() == []
    assert report(GOOD) == 0
    assert "DIFFERENT" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"results": {"a": ONE, "c": ONE}}, "1 jobs without a result, such as b"),
        ({"results": {"a": OTHER, "b": OTHER, "c": ONE}}, "another result, such as a"),
        ({"results": {**GOOD.results, "d": ONE}}, "another result, such as d"),
        ({"completions": ["a", "b", "c", "a"]}, "1 jobs completed twice, such as a"),
        ({"completions": ["a", "b", "c", "d"]}, "completed that nobody enqueued, such as d"),
        ({"completions": ["a", "b"]}, "whose completion nobody saw, such as c"),
        ({"counts": Counts(enqueued=3, completed=2)}, "lost: 1 instead of 0"),
        ({"counts": Counts(enqueued=3, completed=2, dead=1)}, "present: 1 instead of 0"),
        ({"counts": Counts(enqueued=3, completed=2, cancelled=1)}, "completed: 2 instead of 3"),
        ({"counts": Counts(enqueued=4, completed=4)}, "enqueued: 4 instead of 3"),
    ],
)
def test_what_is_different(
    change: dict[str, object], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each difference from the promises is named, and the exit code is 1."""
    wrong = attrs.evolve(GOOD, **change)
    assert any(words in one for one in wrong.differences()), wrong.differences()
    assert report(wrong) == 1
    assert "DIFFERENT: " in capsys.readouterr().out


def test_facts() -> None:
    """The same source gives the same facts, and another source gives others."""
    source = b"class A:\n    def f(self): pass\n    async def g(self): pass\ndef h(x, y): pass\n"
    assert facts(source) == facts(source)
    found = totals({"m": facts(source)})
    assert found.pop("digest") == totals({"m": facts(source)})["digest"]
    assert found == {"modules": 1, "lines": 4, "functions": 3, "classes": 1, "unparsable": 0}
    assert facts(source) != facts(source.replace(b"x, y", b"x"))
    assert totals({"m": facts(b"def\n")})["unparsable"] == 1


def test_modules(tmp_path: Path) -> None:
    for name in ("b.py", "a/c.py", "a/data.txt", "site-packages/x.py", "a/__pycache__/y.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    assert modules(tmp_path) == ["a/c.py", "b.py"]
