# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[embedded]"]
# ///
"""Trips with three bookings as children. Of each third trip one dies, so that the trip dies and is
undone. All workers are killed again and again, with the server each second time.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path

import redis
from headrace import JobFailed, Receipt

from programs import Program, until

TRIPS = int(sys.argv[1]) if len(sys.argv) > 1 else 60
KILLS = 6
os.environ["HEADRACE_URL"] = "embedded:./data"

from trips import bookings, trips  # noqa: E402 - it reads the environment

parts = ("flight", "hotel", "car")


def kill_server() -> None:
    """Kill the private server. It has a file of all writes, and is started again with it."""
    with redis.Redis(unix_socket_path="data/valkey.sock", decode_responses=True) as client:
        assert client.config_get("appendonly")["appendonly"] == "yes"
        os.kill(client.info("server")["process_id"], signal.SIGKILL)


with trips, bookings, ExitStack() as stack:
    workers = [Program("python", "trips.py") for _ in range(2)]
    stack.callback(lambda: [worker.kill() for worker in workers])
    receipts = list[Receipt]()
    for kill in range(KILLS):
        for n in range(kill * TRIPS // KILLS, (kill + 1) * TRIPS // KILLS):
            receipts.append(trips.enqueue(b"", id=f"trip-{n}"))
        workers[0].says("worker_started")
        time.sleep(0.3)
        for worker in workers:
            worker.kill()
        if kill % 2:
            kill_server()
        workers[:] = [Program("python", "trips.py") for _ in range(2)]

    def over() -> bool:
        counts, children = trips.counts(), bookings.counts()
        return counts.present == counts.dead and children.present == children.dead

    until(over, "the end of all trips")
    ids = [letter.job.id for letter in trips.admin.dead()]
    dead = {name: state for name in ids if (state := trips.find(name)) is not None}
    counts, children = trips.counts(), bookings.counts()
    outcomes = dict[str, bytes | None]()
    for n, receipt in enumerate(receipts):
        try:
            outcomes[f"trip-{n}"] = receipt.result(timeout=0)
        except JobFailed as error:
            assert error.reason == dead[f"trip-{n}"].reason
            outcomes[f"trip-{n}"] = None
    for worker in workers:
        worker.stop()

acts = defaultdict[tuple[str, str], list[str]](list)
order = list[tuple[str, str]]()
for line in Path("ledger.txt").read_text().splitlines():
    act, trip, number = line.split()
    acts[act, trip].append(number)
    order.append((act, number))
third = TRIPS // 3
assert (counts.completed, counts.dead, counts.lost) == (TRIPS - third, third, 0), counts
ended = (children.enqueued, children.completed, children.dead, children.lost)
assert ended == (3 * TRIPS, 3 * TRIPS - third, third, 0), children
undone = {number for act, number in order if act in ("refund", "release")}
for n in range(TRIPS):
    trip = f"trip-{n}"
    result = outcomes[trip]
    charges, holds = {*acts["charge", trip]}, {*acts["hold", trip]}
    if n % 3:
        assert result is not None
        booked = result.decode().split()
        assert all(one in acts[part, trip] for one, part in zip(booked, parts, strict=True)), trip
        assert not undone & (charges | holds), f"{trip} arrived, and was undone"
        continue
    assert result is None
    assert "no car" in str(dead[trip].reason), dead[trip].reason
    refunded = next(at for at, one in enumerate(order) if one[0] == "refund" and one[1] in charges)
    released = next(at for at, one in enumerate(order) if one[0] == "release" and one[1] in holds)
    assert refunded < released, f"{trip} was undone in the wrong order"
    steps = {step.name: step.state for step in dead[trip].steps}
    assert (steps["hold"], steps["charge"]) == ("undone", "undone"), steps
    assert [steps[one] for one in ("book", "book-2", "book-3")] == ["done", "done", "dead"], steps
again = sum(len(numbers) - 1 for (_, trip), numbers in acts.items() if trip != "-")
print(f"{TRIPS} trips, {KILLS} kills: {third} undone, {again} services were asked again")
