"""The users of the documentation. They may do what their roles allow, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace import Debounce, Queue, Replace, Worker
from headrace.inspect import Inspector
from tests.support.awaiting import until
from tests.support.servers import Server

DOCS = Path(__file__).parents[2] / "docs"
PAGES = (DOCS / "explanation" / "security.md", DOCS / "how-to" / "run-in-production.md")
ROLES = {
    name: rules
    for page in PAGES
    for name, rules in re.findall(
        r"^ACL SETUSER (\w+) (.*)$", page.read_text("utf-8"), re.MULTILINE
    )
}
REFUSED = r"(?i)NOPERM|ACL|no permissions|can't run"
NOT_ALLOWED = (redis.exceptions.NoPermissionError, redis.ResponseError)


@pytest.fixture
def admin(newest: Server) -> Iterator[Queue]:
    """Return the queue `q` for a user with all rights."""
    with Queue("q", url=newest.url) as queue:
        yield queue


@pytest.fixture
def role(newest: Server) -> Iterator[Any]:
    """Return a function that makes clients of roles, as in `role("viewer")`."""
    made: list[Any] = []
    with redis.Redis(unix_socket_path=newest.path) as client:
        for name, rules in ROLES.items():
            client.execute_command("ACL", "SETUSER", name, "reset", *rules.split())

        def user(name: str) -> Any:
            made.append(redis.Redis(unix_socket_path=newest.path, username=name, password="secret"))
            return made[-1]

        yield user
        for one in made:
            one.close()
        client.execute_command("ACL", "DELUSER", *ROLES)


def test_there_are_these_roles() -> None:
    assert ROLES.keys() == {"producer", "mail", "viewer"}


def test_a_producer_enqueues_and_waits_and_leases_nothing(
    admin: Queue, role: Any, newest: Server
) -> None:
    worker = Worker(newest.url)
    worker.handler("q")(lambda job: b"done with " + job.payload)
    with Queue("q", client=role("producer"), max_waiting=100) as queue:
        with worker:
            assert queue.enqueue(b"x").result(timeout=60) == b"done with x"
            assert [one.added for one in queue.enqueue_many([b"a", b"b"])] == [True, True]
            until(lambda: admin.counts().completed == 3)
        receipt = queue.enqueue(b"x", id="a", delay=60)
        assert queue.enqueue(b"y", id="a", if_exists=Debounce(90)).outcome == "moved"
        assert queue.enqueue(b"z", id="a", if_exists=Replace()).outcome == "replaced"
        with pytest.raises(NOT_ALLOWED, match=REFUSED):
            queue.lease()
        assert queue.enqueue(b"other", id="b").added
    assert admin.find(receipt.id) is not None
    assert (admin.counts().waiting, admin.counts().lost) == (2, 0)


def test_a_viewer_looks_and_changes_nothing(admin: Queue, role: Any) -> None:
    admin.enqueue_many([b"a", b"b", b"c"])
    admin.enqueue(b"later", id="later", delay=60)
    leased = admin.lease()
    assert leased is not None
    admin.lease().dead_letter("no")  # type: ignore[union-attr]
    before = admin.counts()
    with Queue("q", client=role("viewer")) as queue, Inspector(client=role("viewer")) as inspector:
        assert queue.counts() == before
        assert [one.job.payload for one in queue.admin.waiting()] == [b"c"]
        assert [one.reason for one in queue.admin.dead()] == ["no"]
        assert len(list(queue.admin.running())) == len(list(queue.admin.delayed())) == 1
        assert queue.find("later") is not None
        assert (overview := inspector.overview()).queues[0].counts == before
        assert overview.queues[0].balanced
        assert inspector.queue("q").queue.counts == before
        seen = inspector.job("q", leased.job.id)
        assert seen is not None
        assert seen.token == leased.token
        assert inspector.dead("q").all == 1
        for change in (
            lambda: queue.enqueue(b"x"),
            queue.lease,
            queue.admin.purge,
            queue.admin.pause,
            queue.admin.redrive,
        ):
            with pytest.raises(NOT_ALLOWED, match=REFUSED):
                change()
    assert admin.counts() == before


def test_a_producer_may_use_a_sharded_queue(newest: Server, role: Any) -> None:
    with Queue("s", client=role("producer"), shards=4) as queue:
        assert queue.enqueue(b"x", key="k").added
        assert len(queue.enqueue_many([b"x", b"y"])) == 2
    with Queue("s", url=newest.url, shards=4) as queue:
        assert queue.counts().waiting == 3
