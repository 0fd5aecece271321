"""The judge accepts an honest story, and complains of each way to spoil it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis

from headrace import Queue
from tests.chaos.actors import LEVELS, QUEUE
from tests.chaos.judge import PREFIX, SAMPLES, Judge
from tests.support.servers import Server


class Story:
    """Two jobs of p. One goes to a and then to b, which completes it. The other is dead."""

    def __init__(self, judge: Judge, queue: Queue, client: redis.Redis) -> None:
        self.judge, self.queue, self.client = judge, queue, client
        self.log("try p p-1", "try p p-2")
        first, second = (receipt.id for receipt in queue.enqueue_many([b"p-1", b"p-2"]))
        self.id, self.dead = first, second
        self.log(f"ack p p-1 {first} 1", f"ack p p-2 {second} 1")
        one, two = queue.lease_many(2)
        self.log(f"job a p-1 {first} 1", f"job a p-2 {second} 1", f"ask a {first} 1")
        assert one.release()
        self.log(f"did a {first} 1 1", f"ask a {second} 1")
        assert two.dead_letter("enough")
        self.log(f"did a {second} 1 1")
        again = queue.lease()
        assert again is not None
        self.log(f"job b p-1 {first} 2")
        assert again.complete()
        client.hset("chaos:won", first, "1")
        self.log(f"end b {first} 2 1")

    def log(self, *lines: str) -> None:
        with self.judge.log.open("a") as file:
            file.write("".join(f"\n{line} ." for line in lines))

    def end(self) -> dict[str, list[str]]:
        """Return the complaints when all processes have left."""
        self.client.delete(PREFIX + "workers", PREFIX + "registered")
        for row in self.client.xinfo_consumers(PREFIX + "jobs", "workers"):
            if row["name"].startswith(b"queue-"):
                self.client.xgroup_delconsumer(PREFIX + "jobs", "workers", row["name"])
        self.judge.finish(self.queue)
        return self.judge.complaints


@pytest.fixture
def story(newest: Server, tmp_path: Path) -> Iterator[Story]:
    log = tmp_path / "log"
    log.touch()
    with (
        redis.Redis(unix_socket_path=newest.path) as client,
        Queue(QUEUE, url=newest.url, **LEVELS) as queue,
    ):
        yield Story(Judge(log, client), queue, client)


def test_honest_story(story: Story) -> None:
    """Lines that a killed process left unfinished do not count."""
    story.log(f"end c {story.id} 1 1")
    log = story.judge.log
    log.write_text(log.read_text().removesuffix(" 1 .") + "\ntry c c-1 .")
    counts = story.judge.sample(story.queue)
    assert (counts.completed, counts.dead) == (1, 1)
    assert not story.end()
    assert story.judge.seen["end"] == 1


SPOILT: dict[str, tuple[str, Callable[[Story], object]]] = {
    "the queue lost a job": ("lost", lambda s: s.client.hdel("chaos:won", s.id)),
    "a receipt of nothing": ("lost", lambda s: s.log("try p p-3", "ack p p-3 9-9 1")),
    "two completions": ("double", lambda s: s.client.hincrby("chaos:won", s.id, 1)),
    "completed and dead": ("double", lambda s: s.client.hset("chaos:won", s.dead, 1)),
    "completed and cancelled": ("double", lambda s: s.client.hset("chaos:gone", s.id, 1)),
    "two were told": ("double", lambda s: s.log(f"job c p-1 {s.id} 3", f"end c {s.id} 3 1")),
    "told, not counted": (
        "claimed",
        lambda s: s.log(f"job c p-2 {s.dead} 3", f"end c {s.dead} 3 1"),
    ),
    "cancelled, not counted": ("claimed", lambda s: s.log(f"can p {s.dead}", f"off p {s.dead} 1")),
    "completed, then cancelled": ("ghost", lambda s: s.log(f"can p {s.id}", f"off p {s.id} 1")),
    "completed, told it was cancelled": (
        "double",
        lambda s: s.log(f"can p {s.id}", f"off p {s.id} 1"),
    ),
    "completed, then rescheduled": ("ghost", lambda s: s.log(f"mov p {s.id}", f"due p {s.id} 1")),
    "nobody asked for it": ("phantom", lambda s: s.client.hset("chaos:gone", s.dead, 1)),
    "won, and not told": (
        "denied",
        lambda s: (spoil_log(s, f"end b {s.id} 2 1", f"end b {s.id} 2 0"), forget_a(s)),
    ),
    "a stale holder obeyed": ("fence", lambda s: s.log(f"ask a {s.id} 1", f"did a {s.id} 1 1")),
    "one token, two holders": ("token", lambda s: s.log(f"job c p-1 {s.id} 2")),
    "one payload, two jobs": ("twice", lambda s: s.log("ack p p-1 9-9 1")),
    "added, and not told": (
        "twice",
        lambda s: spoil_log(s, f"ack p p-1 {s.id} 1", f"ack p p-1 {s.id} 0"),
    ),
    "an unknown payload": ("phantom", lambda s: s.log(f"job a x-1 {s.id} 3")),
    "an unknown completion": ("phantom", lambda s: s.client.hset("chaos:won", "9-9", 1)),
    "one job not counted": ("law", lambda s: s.client.hincrby(PREFIX + "stats", "completed", -1)),
    "an error": ("error", lambda s: s.log("bad a ValueError('no')")),
    "a key": ("left", lambda s: s.client.hset(PREFIX + "ids", "p-9", "9-9")),
    "a record for ever": ("left", lambda s: s.client.set(PREFIX + "lane:x", "1")),
    "a consumer": (
        "left",
        lambda s: s.client.xgroup_createconsumer(PREFIX + "jobs", "workers", "w"),
    ),
    "an entry": ("left", lambda s: s.queue.enqueue(b"p-3")),
}


def spoil_log(story: Story, old: str, new: str) -> None:
    text = story.judge.log.read_text()
    assert old in text
    story.judge.log.write_text(text.replace(old, new))


def forget_a(story: Story) -> None:
    """Change the story as if only b had leased the job."""
    for line in (f"job a p-1 {story.id} 1", f"ask a {story.id} 1", f"did a {story.id} 1 1"):
        spoil_log(story, f"\n{line} .", "")


@pytest.mark.slow
@pytest.mark.parametrize("spoilt", SPOILT)
def test_spoilt_story(story: Story, spoilt: str) -> None:
    kind, spoil = SPOILT[spoilt]
    spoil(story)
    assert kind in story.end()


def enqueue(story: Story) -> str:
    return story.queue.enqueue(b"p-3").id


MOMENTS: dict[str, tuple[str, Callable[[Story], object]]] = {
    "one job not counted": ("law", lambda s: s.client.hincrby(PREFIX + "stats", "completed", -1)),
    "two completions": ("double", lambda s: s.client.hincrby("chaos:won", s.id, 1)),
    "handed to nobody": (
        "stranded",
        lambda s: (enqueue(s), s.queue.lease(), s.client.xgroup_destroy(PREFIX + "jobs", "workers"),
                   s.client.xgroup_create(PREFIX + "jobs", "workers", "$")),
    ),
    "held, and not there": (
        "dangling",
        lambda s: (entry := enqueue(s), s.queue.lease(), s.client.xdel(PREFIX + "jobs", entry)),
    ),
    "an id of nothing": ("index", lambda s: s.client.hset(PREFIX + "ids", "x", "9-9")),
    "a delayed job without a body": ("index", lambda s: s.client.zadd(PREFIX + "delayed", {"x": 9e12})),
    "a delayed job without its id": (
        "index",
        lambda s: (s.queue.enqueue(b"p-3", id="i", delay=60), s.client.hdel(PREFIX + "ids", "i")),
    ),
    "a body without a delay": ("index", lambda s: s.client.hset(PREFIX + "bodies", "x", "")),
    "releases of nothing": ("index", lambda s: s.client.hset(PREFIX + "released", "9-9", 1)),
    "the term of no lease": ("index", lambda s: s.client.zadd(PREFIX + "leases", {"9-9": 1})),
    "too many tokens": ("index", lambda s: [s.client.xadd(PREFIX + "wake", {"w": "1"}) for _ in range(17)]),
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("spoilt", MOMENTS)
def test_spoilt_moment(story: Story, spoilt: str) -> None:
    """A single sample shows it."""
    story.judge.sample(story.queue)
    assert not story.judge.complaints
    kind, spoil = MOMENTS[spoilt]
    spoil(story)
    story.judge.sample(story.queue)
    assert kind in story.judge.complaints


def test_a_second_job_of_an_id(story: Story) -> None:
    """A second job of an id has no id of its own, also while it waits for its next attempt."""
    story.queue.enqueue(b"p-3", id="i")
    story.client.xadd(PREFIX + "jobs", {"data": b"p-4", "id": "i"})
    assert all(lease.retry(delay=60) for lease in story.queue.lease_many(2))
    assert {state.job.id for state in story.queue.admin.delayed()} == {"i"}
    assert story.client.zcard(PREFIX + "delayed") == 2
    assert story.client.hlen(PREFIX + "ids") == 1
    story.judge.sample(story.queue)
    assert "index" not in story.judge.complaints, story.judge.complaints


def test_unheard(story: Story) -> None:
    """The judge complains of a woken job only after enough newer jobs were completed and enough
    looks."""
    story.queue.enqueue(b"p-3")
    story.client.execute_command(*story.queue.ops.wait(1.0))
    for _ in range(SAMPLES + 1):
        story.judge.sample(story.queue)
    assert not story.judge.complaints
    story.client.hincrby(PREFIX + "stats", "completed", SAMPLES)
    story.client.hincrby(PREFIX + "stats", "enqueued", SAMPLES)
    story.judge.sample(story.queue)
    assert story.judge.complaints.keys() == {"unheard"}
