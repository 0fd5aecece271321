"""The reports of a relay. Screens and the doctor show waiting rows, and metrics show how late rows
become jobs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from typer.testing import CliRunner

import headrace.web
from headrace import Queue
from headrace._model.views.outbox import OutboxView
from headrace._protocol.features import outbox as outbox_ops
from headrace.console.cli.app import app
from headrace.inspect import Inspector
from headrace.sql import Outbox, Relay
from tests.sql.databases import Database
from tests.support.awaiting import until
from tests.support.servers import Server
from tests.tracing.conftest import Points, points  # noqa: F401 - a fixture


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue[bytes]]:
    with newest.queue("q", max_waiting=1) as queue:
        queue.counts()
        yield queue


def seen(server: Server) -> OutboxView | None:
    """Look at the queue."""
    with Inspector(url=server.url, fresh=0.0) as inspector:
        return inspector.queue("q").queue.outbox


def ran(server: Server, *arguments: str) -> tuple[int, list[Any]]:
    """Run a command of `headrace`. Return its exit code and the values that it has printed."""
    done = CliRunner().invoke(app, [*arguments, "--json", "--url", server.url])
    return done.exit_code, [json.loads(line) for line in done.stdout.splitlines()]


async def page(url: str) -> str:
    pages: Any = headrace.web.app(url, access=lambda _request: "read")
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(pages), base_url="http://127.0.0.1"
    ) as client:
        answer = await client.get("/queue", params={"name": "q"})
    await pages.close()
    return answer.text


@pytest.mark.usefixtures("points")
def test_a_relay_reports(
    database: Database,
    newest: Server,
    queue: Queue[bytes],
    points: Points,  # noqa: F811
) -> None:
    outbox = Outbox(queue)
    with database.engine().begin() as connection:
        for _ in range(3):
            outbox.enqueue(connection, b"")
        outbox.enqueue(connection, b"", priority=0, headers={"a": "b"}, id="bad")
    database.ask("UPDATE headrace_outbox SET written_ms = written_ms - 60000, refused = NULL")
    database.ask("UPDATE headrace_outbox SET refused = 'no job' WHERE job_id = 'bad'")
    assert seen(newest) is None
    with Relay(database.engine(), outbox):
        until(lambda: queue.counts().present == 1)
    assert queue.lease() is not None  # room for one more
    with Relay(database.engine(), outbox):
        until(lambda: (view := seen(newest)) is not None and view.rows == 1)
        found = seen(newest)
        assert found is not None
        assert (found.refused, found.dead) == (1, False)
        assert 59 < found.oldest < 120
        assert points.value("headrace.outbox.rows", state="waiting") == 1
        assert points.value("headrace.outbox.oldest") >= 59
    assert points.read("headrace.outbox.lag")
    ended = seen(newest)
    assert ended is not None
    assert ended.ended


def test_screens_name_a_dead_relay(newest: Server, queue: Queue[bytes]) -> None:
    queue.enqueue(b"")
    report = OutboxView("host:17", 3, 5.0, 1, ended=False)
    queue._executor.run_all([outbox_ops.relayed(queue.ops, report)])
    (row,) = ran(newest, "stats", "q")[1]
    assert row["q"]["outbox"] == {
        "relay": "host:17", "rows": 3, "oldest": 5.0, "refused": 1, "ended": False, "why": "",
        "age": row["q"]["outbox"]["age"],
    }  # fmt: skip
    relay = next(one for one in ran(newest, "doctor")[1] if one["check"] == "relay")
    assert relay["state"] == "note"
    key = queue.ops.keys.key("relayed")
    with newest.client() as client:
        client.hincrby(key, "at", -300_000)
        assert 0 < client.pttl(key) <= 7 * 86_400_000
    code, found = ran(newest, "doctor")
    relay = next(one for one in found if one["check"] == "relay")
    assert (code, relay["state"]) == (1, "broken")
    assert (
        "3 rows, the oldest for 5 s, 1 refused; the relay host:17 is dead, it reported 3"
        in relay["text"]
    )
    assert "3 rows, the oldest for 5 s" in asyncio.run(page(newest.url))
    queue._executor.run_all(
        [outbox_ops.relayed(queue.ops, OutboxView("host:17", 0, 0.0, 0, ended=True))]
    )
    relay = next(one for one in ran(newest, "doctor")[1] if one["check"] == "relay")
    assert (relay["state"], relay["text"]) == (
        "note",
        "of the outbox of q: 0 rows; the relay host:17 ended 0 s ago",
    )
