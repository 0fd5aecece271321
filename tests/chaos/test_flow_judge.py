"""The judge accepts honest runs of the flow, and complains of each way to spoil them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import Flow, Queue
from tests.chaos import flow_load
from tests.chaos.actors import LEVELS, QUEUE
from tests.chaos.flow_judge import BASE
from tests.chaos.judge import Judge
from tests.support.servers import Server

DONE, OPEN, DEAD = "well-fail-2-pick-p-1", "well-fail-3-pick-p-2", "dead-fail-1-pack-p-3"


class Story:
    """Three runs. One is completed, one waits for children, and one has failed as planned."""

    def __init__(
        self, judge: Judge, queue: Queue, flow: Flow, queues: dict[str, Queue], folder: Path
    ) -> None:
        self.judge, self.queue, self.flow, self.queues, self.folder = (
            judge,
            queue,
            flow,
            queues,
            folder,
        )
        self.client = judge.client
        for name in (DONE, DEAD):
            self.begin(name)
            for stage in ("pick", "pack", "weigh"):
                self.serve(stage)
        self.serve("bill")
        assert [self.state(name).state for name in (DONE, DEAD)] == ["completed", "failed"]

    def state(self, name: str) -> Any:
        return self.flow.state(name)

    def begin(self, name: str) -> None:
        self.log(f"beg p {name}")
        self.log(
            f"got p {name} {int(self.flow.start(name, id=name, attributes={'who': 'p'}).added)}"
        )

    def blocked(self) -> None:
        """Return the second run while it waits."""
        self.begin(OPEN)
        self.serve("pick")

    def serve(self, stage: str) -> None:
        """Do the work of a stage, and count as the server would."""
        for lease in self.queues[stage].lease_many(10):
            name, state = flow_load.named(lease.job), self.state(lease.job.id)
            self.log(f"run w {lease.job.payload.decode()} {name} {lease.job.attempt}")
            try:
                outcome = flow_load.step(
                    stage, lease.job, state.children, state.failed, self.folder
                )
            except flow_load.DeadLetter:
                assert lease.dead_letter("made to")
                continue
            if stage == "bill":
                self.log(f"bag w {lease.job.id} {outcome.decode().replace(' ', '')}")
                self.won(f"pick|{lease.job.id}")
            assert self.flow.complete(lease, outcome)
            self.won(f"fan|{lease.job.id}" if stage == "pick" else name)

    def won(self, name: str) -> None:
        self.client.hincrby("chaos:won", name, 1)

    def run(self, name: str = DONE) -> str:
        return f"{BASE}:flow:{name}"

    def log(self, *lines: str) -> None:
        with self.judge.log.open("a") as file:
            file.write("".join(f"\n{line} ." for line in lines))

    def end(self) -> dict[str, list[str]]:
        """Return the complaints when all processes have left."""
        for prefix in (f"{BASE}/{stage}:" for stage in flow_load.STAGES):
            self.client.delete(prefix + "workers", prefix + "registered")
            for row in self.client.xinfo_consumers(prefix + "jobs", "workers"):
                if row["name"].startswith(b"queue-"):
                    self.client.xgroup_delconsumer(prefix + "jobs", "workers", row["name"])
        self.judge.sample(self.queue)
        self.judge.finish(self.queue)
        return self.judge.complaints


@pytest.fixture
def story(newest: Server, tmp_path: Path) -> Iterator[Story]:
    log = tmp_path / "log"
    log.touch()
    with (
        redis.Redis(unix_socket_path=newest.path) as client,
        Queue(QUEUE, url=newest.url, **LEVELS) as queue,
        Flow(flow_load.FLOW, url=newest.url, lookup=["who"]) as flow,
    ):
        flow_load.declared(flow, 60)
        queues = {
            stage: Queue(f"{flow_load.FLOW}/{stage}", url=newest.url) for stage in flow_load.STAGES
        }
        yield Story(Judge(log, client), queue, flow, queues, tmp_path)
        for one in queues.values():
            one.close()


def test_honest_runs(story: Story) -> None:
    story.blocked()
    story.judge.sample(story.queue)
    assert story.judge.runs.states == {"completed": 1, "failed": 1, "running": 1}
    assert story.flow.cancel(OPEN)
    story.log(f"can p run|{OPEN}", f"off p run|{OPEN} 1")
    for name in (f"pick|{OPEN}", *(f"pack|{OPEN}/1/{i}" for i in range(3))):
        story.client.hincrby("chaos:gone", name, 1)
    assert not story.end()
    assert story.judge.runs.states == {"completed": 1, "failed": 1, "cancelled": 1}


CHILD = f"{DONE}/1/0"
SPOILT: dict[str, tuple[str, Callable[[Story], object]]] = {
    "a child is missing": ("join", lambda s: s.log(f'bag w {DONE} [{{"0":"{CHILD[::-1]}"}},[]]')),
    "a child without a result": ("join", lambda s: s.log(f'bag w {DONE} [{{"0":null,"1":null}},[]]')),
    "a failure is passed over": ("join", lambda s: s.log(f'bag w {DONE} [{{"0":"{CHILD[::-1]}"}},["1"]]')),
    "the last result is another": ("join", lambda s: s.client.hset(s.run(), f"result:bill:{DONE}", "[{},[]]")),
    "it never fanned out": ("join", lambda s: s.client.hdel("chaos:won", f"fan|{DONE}")),
    "a step twice": ("double", lambda s: s.won(f"weigh|{CHILD}")),
    "a child ended twice": ("end", lambda s: s.client.hset("chaos:gone", f"pack|{CHILD}", 1)),
    "a child ended too early": ("end", lambda s: s.client.hset(s.run(), f"at:{CHILD}", "done pack")),
    "a run ended twice": ("end", lambda s: s.client.hset("chaos:gone", f"pick|{DONE}", 1)),
    "failed for nothing": ("end", lambda s: s.client.hset(s.run(), "state", "failed")),
    "completed in spite of all": ("end", lambda s: s.client.hset(s.run(DEAD), "state", "completed")),
    "cancelled, and told otherwise": ("claimed", lambda s: s.log(f"can p run|{DONE}", f"off p run|{DONE} 1")),
    "cancelled by nobody": ("claimed", lambda s: s.client.hset(s.run(), "state", "cancelled")),
    "a child is not cancelled": ("claimed", lambda s: s.log(f"can p run|{CHILD}", f"off p run|{CHILD} 1")),
    "a run of which nothing is known": ("lost", lambda s: s.log(f"beg p {OPEN}", f"got p {OPEN} 1")),
    "a run that nobody began": ("phantom", lambda s: s.won(f"bill|{OPEN}")),
    "other bytes": ("phantom", lambda s: s.log(f"run w x pick|{DONE} 1")),
    "begun, and told otherwise": ("twice", lambda s: s.log(f"got p {DONE} 0")),
    "a run that is kept for ever": ("left", lambda s: s.client.persist(s.run())),
    "an attribute is still looked up": ("left", lambda s: s.client.zadd(f"{BASE}:index", {"x": 0})),
    "a run goes on": ("end", lambda s: s.blocked()),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("spoilt", SPOILT)
def test_spoilt_run(story: Story, spoilt: str) -> None:
    kind, spoil = SPOILT[spoilt]
    spoil(story)
    if spoilt == "completed in spite of all":
        story.client.hset(story.run(DEAD), f"result:bill:{DEAD}", "[{},[]]")
    assert kind in story.end()


PACK = f"{BASE}/pack:"
MOMENTS: dict[str, tuple[str, Callable[[Story], object]]] = {
    "a child more": ("astray", lambda s: s.client.hincrby(s.run(OPEN), f"pending:{OPEN}", 1)),
    "a failure more": ("astray", lambda s: s.client.hincrby(s.run(OPEN), f"failed:{OPEN}", 1)),
    "a child that is nowhere": ("astray", lambda s: s.client.hdel(PACK + "ids", f"{OPEN}/1/0")),
    "a child of no flow": ("astray", lambda s: s.client.zrem(PACK + "flows", f"{OPEN}/1/0")),
    "a parent that is nowhere": ("astray", lambda s: s.client.hdel(f"{BASE}/pick:blocked", OPEN)),
    "children of a run that was cancelled": ("orphan", lambda s: s.client.hset(s.run(OPEN), "state", "cancelled")),
    "a job of a stage is not counted": ("law", lambda s: s.client.hincrby(PACK + "stats", "enqueued", 1)),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("spoilt", MOMENTS)
def test_spoilt_moment(story: Story, spoilt: str) -> None:
    """A single sample shows it."""
    story.blocked()
    story.judge.sample(story.queue)
    assert not story.judge.complaints
    kind, spoil = MOMENTS[spoilt]
    spoil(story)
    story.judge.sample(story.queue)
    assert kind in story.judge.complaints
