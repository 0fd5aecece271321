# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[embedded,sql]", "fastapi", "uvicorn"]
# ///
"""Orders in a transaction with their jobs. The site and its worker are killed between any two
statements."""

from __future__ import annotations

import os
import random
import urllib.error

from headrace.sql import create_tables
from sqlalchemy import text

from programs import Program, ask, until

KILLS = 8
os.environ["HEADRACE_URL"] = "embedded:./data"

from shop import Account, Base, Session, engine, orders  # noqa: E402 - it reads the environment

chosen, number, accepted = random.Random(7), 0, list[str]()
with engine.begin() as connection:
    create_tables(connection)
    Base.metadata.create_all(connection)
with Session(engine) as session, session.begin():
    session.add(Account(id=1, balance=0))


def count(statement: str) -> int:
    with engine.connect() as connection:
        return int(connection.execute(text(statement)).scalar_one())


def site(at: int) -> tuple[Program, str]:
    web = Program("python", "faulty.py", str(at), "uvicorn", "web:app", "--port", "0")
    return web, "http" + web.says("Uvicorn running on http").partition("http")[2].partition(" ")[0]


def work(at: int) -> Program:
    return Program("python", "faulty.py", str(at), "shop")


with orders:
    worker, killed = work(chosen.randrange(40, 120)), 0
    for _ in range(KILLS):
        web, url = site(chosen.randrange(1, 60))
        with web:
            while web._process.poll() is None:
                number += 1
                try:
                    status, _ = ask(f"{url}/orders/order-{number}", "POST")
                except (urllib.error.URLError, ConnectionError):
                    break  # killed; it is not known whether the order is there
                assert status == 201, web.output
                accepted.append(f"order-{number}")
                if worker._process.poll() is not None:
                    worker, killed = work(chosen.randrange(40, 120)), killed + 1
    worker.kill()
    with work(0) as worker:
        until(lambda: count("SELECT count(*) FROM headrace_outbox") == 0, "all rows are relayed")
        until(lambda: orders.counts().present == 0, "all jobs are done")
        worker.stop()
    counts = orders.counts()

written = count("SELECT count(*) FROM orders")
assert set(accepted) <= {f"order-{n}" for n in range(1, number + 1)}
with engine.connect() as connection:
    names = set(connection.execute(text("SELECT name FROM orders")).scalars())
assert set(accepted) <= names, "an order that was accepted is lost"
assert (counts.completed, counts.dead, counts.lost) == (written, 0, 0), counts
assert count("SELECT balance FROM account") == -written
assert count("SELECT count(*) FROM headrace_inbox") == written
print(
    f"{written} orders, {len(accepted)} accepted; killed: the site {KILLS} times, the worker {killed + 1} times"
)
