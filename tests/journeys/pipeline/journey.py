# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[embedded,cli]"]
# ///
"""A pipeline from a file of lines to rows. Each row is written once by `job.id`, although producer
and workers are killed.
"""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import sys
from pathlib import Path

from programs import Program, until

LINES = int(sys.argv[1]) if len(sys.argv) > 1 else 60_000
BROKEN = (7, 77)
os.environ["HEADRACE_URL"] = "embedded:./data"

with Path("amounts.jsonl").open("w") as file:
    file.writelines("no JSON\n" if n in BROKEN else f'{{"amount": {n}}}\n' for n in range(LINES))
database = sqlite3.connect("rows.db")
with database:
    database.execute("CREATE TABLE amounts (job TEXT PRIMARY KEY, amount INTEGER)")


def loaded() -> int:
    count: int = database.execute("SELECT count(*) FROM amounts").fetchone()[0]
    return count


def kill(worker: Program) -> None:
    """Kill the last started process, and wait until another one replaces it."""
    *_, last = started = re.findall(r"(\d+) INFO worker_started", worker.output)
    os.kill(int(last), signal.SIGKILL)
    worker.says(f"process {last} was killed by SIGKILL; another is started")
    until(lambda: worker.output.count("INFO worker_started") > len(started), "another process")


with Program("headrace", "work", "load:worker", "--processes", "2") as worker:
    worker.says("worker_started", "serves 'rows' with load.load, batches of up to 500")
    with Program("python", "produce.py") as first:
        first.says("lines are in")
        first.kill()
    with Program("python", "produce.py") as second:
        for part in (5, 2):  # twice, while jobs are under way
            until(lambda part=part: loaded() > LINES // part, f"a {part}th of all lines")
            kill(worker)
        second.ends()
    with Program("headrace", "drain", "rows", "--timeout", "60") as drain:
        drain.ends()
    worker.stop()

count, distinct, total = database.execute(
    "SELECT count(*), count(DISTINCT amount), sum(amount) FROM amounts"
).fetchone()
assert count == distinct == LINES - len(BROKEN), (count, distinct)
assert total == sum(range(LINES)) - sum(BROKEN), total
with Program("headrace", "dead", "rows", "--json") as dead:
    said = dead.ends()
for n in BROKEN:
    assert f'"id": "amounts-{n}"' in said, said
assert said.count('"reason": "no amount: JSONDecodeError') == len(BROKEN), said
with Program("headrace", "stats", "rows", "--json") as stats:
    said = stats.ends()
assert f'"dead": {len(BROKEN)}' in said and '"lost": 0' in said, said
database.close()
