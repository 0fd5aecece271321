# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[embedded]"]
# ///
"""Orders in durable steps. Workers and the services that they call are killed, and nothing is paid
or sent twice."""

from __future__ import annotations

import os
import random
import socket
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

from headrace import Receipt

from programs import Program, until

ORDERS = int(sys.argv[1]) if len(sys.argv) > 1 else 120
KILLS = 12
os.environ["HEADRACE_URL"] = "embedded:./data"
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    os.environ["SERVICES_PORT"] = str(free.getsockname()[1])

from shop import orders  # noqa: E402 - it reads the environment

chosen = random.Random(7)


def services() -> Program:
    program = Program("python", "services.py")
    program.says("open")
    return program


def work() -> Program:
    return Program("python", "shop.py")


with orders, ExitStack() as stack:
    called, workers = services(), [work() for _ in range(3)]
    stack.callback(lambda: [program.kill() for program in (called, *workers)])
    receipts = list[Receipt]()
    for kill in range(KILLS):
        for n in range(kill * ORDERS // KILLS, (kill + 1) * ORDERS // KILLS):
            receipts.append(orders.enqueue(b"", id=f"order-{n}"))
            if n % 2 == 0:  # half of the signals come before their waits
                assert orders.signal(f"order-{n}", "approved", "early") == "kept"
        time.sleep(chosen.uniform(0.02, 0.4))
        workers[0].says("worker_started")
        workers[0].kill()  # the one that has lived longest
        workers = [*workers[1:], work()]
        if chosen.random() < 0.3:
            called.kill()
            called = services()
    for n in range(1, ORDERS, 2):
        assert orders.signal(f"order-{n}", "approved", "late") in ("woke", "kept")
    assert orders.signal("order-0", "approved") in ("present", "unknown")  # the first one stays

    # An operator ships the orders of which the carrier has no parcel.
    def quiet() -> bool:
        counts = orders.counts()
        return counts.present == counts.dead

    until(quiet, "the end of all orders")
    letters = [dead.job.id for dead in orders.admin.dead()]
    for letter in letters:
        assert orders.admin.redrive(letter, from_step="ship") == 1
    until(quiet, "the end of the redriven orders")
    assert not list(orders.admin.dead())
    results = [receipt.result(timeout=10) for receipt in receipts]
    counts = orders.counts()
    assert (counts.completed, counts.present, counts.lost) == (ORDERS, 0, 0), counts
    for worker in workers:
        worker.stop()

rows = [line.split() for line in Path("ledger.txt").read_text().splitlines()]
charges = {order: number for act, order, number in rows if act == "charge"}
parcels = {order: number for act, order, number in rows if act == "parcel"}
times = Counter((act, order) for act, order, _ in rows)
receipted = set[str]()
for act, order, _ in rows:
    if act == "receipt":
        receipted.add(order)
    assert act != "asked" or order not in receipted, f"{order} is recorded, and was charged again"
for n, result in enumerate(results):
    order = f"order-{n}"
    said = "early" if n % 2 == 0 else "late"
    assert result == f"{charges[order]} {parcels[order]} {said}".encode(), (order, result)
    assert times["charge", order] == times["parcel", order] == 1, order
    assert times["receipt", order] >= 3, order
repeated = sum(times["asked", f"order-{n}"] - 1 for n in range(ORDERS))
print(
    f"{ORDERS} orders, {KILLS} kills: {repeated} charges were asked for again, {len(letters)} orders redriven"
)
