"""Two languages on one queue with crashes, stalls and double completions. Each job completes once,
and no key is left.

SOAK_SEED=7 SOAK_JOBS=20000 pytest tests/interop/test_soak.py -n 0 -s

repeats or prolongs it.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import redis
from attrs import define, field

from headrace import Queue
from tests.interop.conftest import Node
from tests.interop.soak import lines
from tests.support.awaiting import until
from tests.support.servers import Server

pytestmark = pytest.mark.ci

SEED = int(os.environ.get("SOAK_SEED", "11"))
JOBS = int(os.environ.get("SOAK_JOBS", "360"))
PATIENCE = 60.0 + JOBS / 20  # seconds; on an idle machine it takes seven
LEASE, HEARTBEAT, TIMEOUT = 500, 100, 1000  # ms
QUEUE = "soak"
PREFIX = f"headrace:{{{QUEUE}}}:{QUEUE}:"
Process = subprocess.Popen[bytes]
WORKERS = [("node", "rough"), ("node", "steady"), ("python", "rough"), ("python", "rough")]


@define(eq=False)
class Soak:
    """The processes of a run."""

    node: Node
    socket: str
    log: Path
    dice: random.Random = field(factory=lambda: random.Random(SEED))
    running: dict[str, tuple[str, str, Process]] = field(factory=dict)
    started: int = 0
    died: Counter[str] = field(factory=Counter)

    def start(self, language: str, role: str, mine: int = 0) -> None:
        self.started += 1
        who = f"{language}{self.started}"
        orders = json.dumps(
            {
                "role": role,
                "who": who,
                "seed": self.dice.randrange(1 << 30),
                "socket": self.socket,
                "log": str(self.log),
            }
            | {"protocol": str(self.node.protocol), "queue": QUEUE, "jobs": JOBS, "mine": mine}
            | {"lease": LEASE, "heartbeat": HEARTBEAT, "timeout": TIMEOUT}
        )
        if language == "node":
            command = self.node.command("soak.js", orders)
        else:
            command = [sys.executable, "-c", "from tests.interop.soak import main\nmain()", orders]
        process = subprocess.Popen(command)
        self.running[who] = (language, role, process)

    def reap(self) -> None:
        """Replace the workers that died. No other process may die."""
        for who, (language, role, process) in list(self.running.items()):
            code = process.poll()
            if code is None:
                continue
            del self.running[who]
            if role == "produce":
                assert code == 0, f"{who} ended with {code}"
            else:
                assert code in (3, -signal.SIGKILL), f"{who} ended with {code}"
                self.died[f"{language} {'exited' if code == 3 else 'was killed'}"] += 1
                self.start(language, role)

    def up(self) -> int:
        """Tell whether the processes run and have said so."""
        return len({who for (who,) in lines(self.log, "up")} & self.running.keys())

    def end(self) -> None:
        for _, _, process in self.running.values():
            process.kill()
            process.wait()


@contextmanager
def soak(node: Node, server: Server, folder: Path) -> Iterator[Soak]:
    """Run the soak. All its processes end with it."""
    soak = Soak(node, server.path, folder / "log")
    try:
        yield soak
    finally:
        soak.end()


def awaited(soak: Soak, condition: object, what: str) -> None:
    """Look after the processes until *condition* holds."""

    def held() -> bool:
        soak.reap()
        time.sleep(0.02)
        return bool(condition())  # type: ignore[operator]

    until(held, f"{what} (seed {SEED})", PATIENCE)


@pytest.mark.slow
def test_soak(node: Node, newest: Server, tmp_path: Path) -> None:
    with soak(node, newest, tmp_path) as run, Queue(QUEUE, url=newest.url) as queue:
        for language, role in WORKERS:
            run.start(language, role)
        awaited(run, lambda: run.up() == len(WORKERS), "the workers")
        run.start("node", "produce", 0)
        run.start("python", "produce", 1)
        awaited(run, lambda: len(run.running) == len(WORKERS), "the producers")
        awaited(run, lambda: not queue.counts().present, "the jobs")
        awaited(run, lambda: run.up() == len(queue.admin.workers()) == len(WORKERS), "the dead")
        for _, _, process in run.running.values():
            process.send_signal(signal.SIGTERM)
        for who, (_, _, process) in run.running.items():
            assert process.wait(PATIENCE) == 0, who
        story = judge(run, queue, newest)
    print(story)


def judge(run: Soak, queue: Queue, server: Server) -> str:
    """Judge the logs. The queue's own counts must agree."""
    added = Counter(name for _, name, yes in lines(run.log, "add") if yes == "1")
    refused = Counter(
        who.rstrip("0123456789") for who, _, yes in lines(run.log, "add") if yes == "0"
    )
    ends = lines(run.log, "end")
    won = Counter(name for _, name, verdict in ends if verdict == "1")
    late = sum(verdict == "0" for _, _, verdict in ends)
    share = Counter(who.rstrip("0123456789") for who, _, verdict in ends if verdict == "1")
    told = {"refused": dict(refused), "won": dict(share), "late": late, "died": dict(run.died)}
    story = f"seed {SEED}: {added.total()} jobs, {told}"

    assert added.keys() == {f"job-{n}" for n in range(JOBS)}, story
    assert won == added, f"not each once: {(won - added) or (added - won)}; {story}"
    counts = queue.counts()
    assert (counts.completed, counts.present, counts.lost) == (won.total(), 0, 0), story
    assert 0.2 <= share["node"] / share["python"] <= 5, story

    # It was rough enough, in both languages.
    assert min(refused["node"], refused["python"]) > 0, story
    assert late > 0, story
    assert {key.partition(" ")[0] for key in run.died} == {"node", "python"}, story
    tokens = Counter((name, token) for _, name, token in lines(run.log, "run"))
    again = {name for (name, _) in tokens if name in won and added[name] == 1}
    assert all(times == 1 for (name, _), times in tokens.items() if name in again), (
        "a token was handed out twice"
    )

    with redis.Redis(unix_socket_path=server.path, decode_responses=True) as client:
        keys = {key.removeprefix(PREFIX) for key in client.scan_iter(count=1000)}
        assert {key.partition(":")[0] for key in keys} <= {"jobs", "wake", "stats", "lane"}, keys
        assert all(client.pttl(PREFIX + key) > 0 for key in keys if key.startswith("lane:"))
        assert client.xlen(PREFIX + "jobs") == 0
        consumers = {row["name"] for row in client.xinfo_consumers(PREFIX + "jobs", "workers")}  # type: ignore[union-attr]
        assert consumers <= {"parked", "parked:s", "idle"}
    return story


def test_the_judge_finds_what_is_wrong(
    node: Node, newest: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A verdict too many and a missing one are found."""
    monkeypatch.setattr(sys.modules[__name__], "JOBS", 2)
    good = ["add node1 job-0 1", "add python2 job-1 1", "end node1 job-0 1", "end python2 job-1 1"]
    for bad in (good[:-1], [*good, "end python2 job-0 1"]):
        run = Soak(node, newest.path, tmp_path / "log")
        run.log.write_text("".join(f"{line}\n" for line in bad))
        with (
            Queue(QUEUE, url=newest.url) as queue,
            pytest.raises(AssertionError, match="not each once"),
        ):
            judge(run, queue, newest)
