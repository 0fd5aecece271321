"""Rows that can't be relayed. Each is set aside with its reason, and the others go on. A command
lists and retries them.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace import AsyncQueue, Queue
from headrace.console.cli.app import app
from headrace.inspect import Inspector
from headrace.sql import Outbox, Relay, relay_once, relay_once_async
from tests.sql.databases import Database
from tests.support.awaiting import until
from tests.support.servers import Server

DEEP = '{"a": ' + "[" * 200_000 + "]" * 200_000 + "}"
ANYWHERE = {  # columns and values, and a word of the reason
    "headers that are deeply nested": ("headers", f"'{DEEP}'", "recursion"),
    "headers that are a list": ("headers", "'[1]'", "JSON object"),
    "headers that are no Unicode": ("headers", r"""'{"\ud800": "x"}'""", "Unicode"),
    "headers with a NUL in what is wrong": ("headers", r"""'{"a\u0000": 1}'""", "str"),
    "a level that there is not": ("priority", "7", "priority"),
    "a year that no calendar has": ("due_ms", "9223372036854775807", ""),
    "a delay that no clock counts": ("delay_ms", "9223372036854775807", ""),
    "an id that is too long": ("job_id", f"'{'x' * 5000}'", "id"),
}
OF_SQLITE = {  # which keeps a value of any type in any column
    "a due time with a fraction": ("due_ms", "1.5", "whole number"),
    "an endless due time": ("due_ms", "9e999", "whole number"),
    "a delay that is text": ("delay_ms", "'soon'", "whole number"),
    "a level that is text": ("priority", "'high'", "whole number"),
    "a payload that is a number": ("payload", "5", "bytes or text"),
    "a payload that is a large number": ("payload", "1000000000000", "bytes or text"),
    "headers that are bytes": ("headers", "x'7b7d'", "text"),
    "headers that are not UTF-8": ("headers", "CAST(x'7b22ff227d' AS TEXT)", "UTF-8"),
    "an id that is not UTF-8": ("job_id", "CAST(x'ff' AS TEXT)", "UTF-8"),
    "an id that is bytes": ("job_id", "x'6964'", "text"),
    "a key that is bytes": ("job_key", "x'6b'", "text"),
}


@pytest.fixture
def queue(newest: Server) -> Iterator[Queue[bytes]]:
    with newest.queue("q") as queue:
        yield queue


def insert(database: Database, column: str, value: str) -> None:
    """Write a row by hand."""
    own = {
        "payload": "CAST('x' AS BYTEA)" if database.dialect == "postgresql" else "x'78'",
        column: value,
    }
    with database.engine().begin() as connection:
        connection.exec_driver_sql(
            f"INSERT INTO headrace_outbox (queue, {', '.join(own)}) VALUES ('q', {', '.join(own.values())})"
        )


def write(database: Database, outbox: Outbox, *payloads: bytes, **options: Any) -> None:
    """Write rows by the outbox."""
    with database.engine().begin() as connection:
        for payload in payloads:
            outbox.enqueue(connection, payload, **options)


def relayed(database: Database, outbox: Outbox) -> int:
    """Move all rows and return their number."""
    with database.engine().connect() as connection:
        return sum(iter(lambda: relay_once(connection, outbox), 0))


def run(*arguments: str) -> tuple[int, str]:
    """Return a function that runs a command and returns its exit code and output."""
    done = CliRunner().invoke(app, [*arguments])
    return done.exit_code, done.stdout


@pytest.mark.parametrize("case", [*ANYWHERE, *OF_SQLITE])
def test_a_row_that_can_t_be_a_job_stops_no_other(
    database: Database, queue: Queue[bytes], case: str, caplog: pytest.LogCaptureFixture
) -> None:
    if database.dialect == "postgresql" and case in OF_SQLITE:
        pytest.skip("PostgreSQL keeps no such value")
    column, value, word = {**ANYWHERE, **OF_SQLITE}[case]
    outbox = Outbox(queue)
    write(database, outbox, b"first", key="k")
    insert(database, column, value)
    write(database, outbox, b"last", key="k")
    assert relayed(database, outbox) == 2
    ((position, reason),) = database.rows("position, refused")
    assert word in reason
    assert len(reason) <= 1000
    assert f"row {position} of the outbox" in caplog.text


def test_a_row_whose_fault_only_the_server_knows(
    database: Database, newest: Server, queue: Queue[bytes]
) -> None:
    """The row is found among many good ones. If the server does not answer at all, no row is to
    blame."""
    outbox = Outbox(queue)
    write(database, outbox, b"first", b"x" * 2_000_000, b"last")
    with newest.client() as client:
        before = client.config_get("proto-max-bulk-len")["proto-max-bulk-len"]
        client.config_set("proto-max-bulk-len", 1 << 20)
        try:
            assert relayed(database, outbox) == 2
            ((why,),) = [database.rows("refused")]
            assert "2,000,000" in why
            client.set(queue.ops.keys.key("jobs"), "a key of another type")
            write(database, outbox, b"one", b"two")
            with (
                pytest.raises(Exception, match="WRONGTYPE"),
                database.engine().connect() as connection,
            ):
                relay_once(connection, outbox)
            assert database.rows("refused")[1:] == [None, None]
        finally:
            client.config_set("proto-max-bulk-len", before)


def test_of_a_queue_with_shards_for_asyncio(database: Database, newest: Server) -> None:
    async def story() -> None:
        engine = database.async_engine()
        async with AsyncQueue("q", url=newest.url, shards=2) as queue:
            outbox = Outbox(queue)
            await asyncio.to_thread(write, database, outbox, b"first")
            await asyncio.to_thread(insert, database, "headers", f"'{DEEP}'")
            await asyncio.to_thread(insert, database, "priority", "7")
            await asyncio.to_thread(write, database, outbox, b"last")
            async with engine.connect() as connection:
                assert await relay_once_async(connection, outbox) == 2
                assert await relay_once_async(connection, outbox) == 0
        await engine.dispose()

    asyncio.run(story())
    assert len(database.rows()) == 2


def test_text_is_a_payload(database: Database, queue: Queue[bytes]) -> None:
    insert(
        database, "payload", "'ä'" if database.dialect == "sqlite" else "convert_to('ä', 'UTF8')"
    )
    assert relayed(database, Outbox(queue)) == 1
    lease = queue.lease()
    assert lease is not None
    assert lease.job.payload == "ä".encode()


PROGRAM = """
from headrace import Queue
from headrace.sql import Outbox
outbox = Outbox(Queue("q"))
"""


def test_they_are_named_listed_and_tried_again(
    database: Database,
    newest: Server,
    queue: Queue[bytes],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "shop_of_refused.py").write_text(PROGRAM)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    outbox = Outbox(queue)
    queue.enqueue(b"by hand")
    write(database, outbox, b"bad", id="bad")
    write(database, outbox, b"worse", id="worse")
    database.ask("UPDATE headrace_outbox SET headers = '[1]'")
    command = [
        "relay",
        "shop_of_refused:outbox",
        "--database",
        database.url,
        "--url",
        newest.url,
        "--json",
    ]
    with Relay(database.engine(), outbox):
        until(lambda: None not in database.rows("refused"))
    with Relay(database.engine(), outbox), Inspector(url=newest.url, fresh=0.0) as inspector:
        until(lambda: (view := inspector.queue("q").queue.outbox) is not None and view.refused == 2)
        seen = inspector.queue("q").queue.outbox
        (problem,) = [one for one in inspector.overview().attention if one.kind == "outbox"]
    first = database.rows("position")[0]
    assert seen is not None
    assert f"2 refused (row {first}: TypeError: headers: give a JSON object" in seen.text
    assert "2 rows of its outbox can't be relayed" in problem.text
    (relay,) = [one for one in map(json.loads, run("doctor", "--json", "--url", newest.url)[1].splitlines())
                if one["check"] == "relay"]  # fmt: skip
    assert f"row {first}" in relay["text"]
    code, shown = run(*command, "--refused")
    listed = [json.loads(line) for line in shown.splitlines()]
    assert (code, [row["job_id"] for row in listed]) == (0, ["bad", "worse"])
    assert "JSON object" in listed[0]["reason"]
    assert "JSON object" in run(*command[:-1], "--refused")[1]
    database.ask("UPDATE headrace_outbox SET headers = '{}' WHERE job_id = 'bad'")
    with Relay(database.engine(), outbox):
        assert run(*command, "--retry-refused") == (0, '{"queue": "q", "retried": 2}\n')
        until(lambda: queue.find("bad") is not None)
        until(lambda: "JSON object" in str(database.rows("refused")))
    assert database.rows() == ["worse"]
    database.ask("DELETE FROM headrace_outbox")
    assert run(*command, "--retry-refused")[0] == 1
