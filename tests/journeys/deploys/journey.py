# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[cli,embedded]"]
# ///
"""Trials of 30 days, of which each has another deploy. A replay is asked before some of them, and
stops one. The days are skipped: the server's moments are set earlier.
"""

from __future__ import annotations

import os
import subprocess
from collections import Counter
from datetime import timedelta
from pathlib import Path

from headrace import Queue
from headrace.testing import private_server, travel

from programs import Program, until

DAYS, RUNS = 30, 10
ASKED = 5  # a replay in so many days, as it starts two programs
SOURCE = Path("trial.txt").read_text()
os.environ["HEADRACE_URL"] = "embedded:./data"
code: dict[str, object] = {"mail": "mail", "front": [], "inside": [], "type": "int"}
wrong = {"mail": "letter"}  # that is, all mails again


def deploy(code: dict[str, object]) -> None:
    """Write the code of a deploy."""
    given = {
        name: "\n    ".join(lines) if isinstance(lines, list) else lines
        for name, lines in code.items()
    }
    source = SOURCE
    for name, text in given.items():
        source = source.replace(f"<{name}>", str(text))
    Path("trial.py").write_text(source)


removed = list[str]()  # steps that are gone on purpose


def replayed() -> subprocess.CompletedProcess[str]:
    """Ask whether the runs of today go on with the code."""
    with Path("runs.jsonl").open("w") as file:
        subprocess.run(["headrace", "runs", "export", "trials"], stdout=file, check=True)
    command = ["headrace", "replay", "trial:worker", "runs.jsonl"]
    command += [word for name in removed for word in ("--removed", name)]
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)


def changed(day: int) -> dict[str, object]:
    """Return the code of a day: a step comes or goes, or a type is widened."""
    fresh = dict(code)
    match day % 5:
        case 1:
            fresh["front"] = [f'job.step("audit-{day}", note, "audit", job.id)']
        case 2:
            fresh["inside"] = [f'if day >= {day}: job.step(f"tip-{{day}}", note, "tip", job.id)']
        case 3:
            fresh["type"] = "int | None"
        case 4:
            fresh["front"] = []
            removed.append(f"audit-{day - 3}")
    return fresh


with private_server(Path("data")) as server, Queue("trials") as trials:
    receipts = [trials.enqueue(b"", id=f"trial-{n}") for n in range(RUNS)]
    stopped = 0
    for day in range(DAYS):
        if day:
            travel(f"unix://{server.path}", timedelta(days=1).total_seconds())
        if day == 15:
            deploy(code | wrong)
            said = replayed()
            assert said.returncode == 1, said.stdout
            lines = [line for line in said.stdout.splitlines() if "'mail-0'" in line]
            assert len(lines) == RUNS, said.stdout
            stopped += 1
        code = changed(day)
        deploy(code)
        if day % ASKED == 0:
            said = replayed()
            assert said.returncode == 0, said.stdout
        with Program("python", "trial.py", HEADRACE_BUILD=f"2026.11.{day + 1}") as worker:

            def asleep(day: int = day) -> bool:
                runs = [*trials.admin.runs(state="delayed")]
                return len(runs) == RUNS and all(run.at == f"day-{day}" for run in runs)

            until(asleep, f"the end of day {day}")
            assert {run.build for run in trials.admin.runs()} == {"2026.11.1"}
            if day % 2:
                worker.stop()  # else it is killed
    travel(f"unix://{server.path}", timedelta(days=1).total_seconds())
    with Program("python", "trial.py", HEADRACE_BUILD="2026.12.1") as worker:
        results = [receipt.result(timeout=60) for receipt in receipts]
        worker.stop()
    counts = trials.counts()
    assert (counts.completed, counts.present, counts.lost) == (RUNS, 0, 0), counts

times = Counter(Path("ledger.txt").read_text().splitlines())
for n in range(RUNS):
    mails = [times[f"mail-{day} trial-{n}"] for day in range(DAYS)]
    assert mails == [1] * DAYS, (n, mails)
    assert results[n] == str(sum(range(DAYS))).encode(), results[n]
assert sum(times.values()) > RUNS * DAYS  # the steps that came and went
print(f"{RUNS} runs of {DAYS} days, {DAYS + 1} deploys, {stopped} stopped by a replay")
