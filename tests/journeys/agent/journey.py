# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[embedded,pydantic-ai]"]
# ///
"""An agent with approvals. Its requests and tool calls are steps, and its approval is a signal.
Its worker is killed after each step.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from headrace import Queue

from programs import Program, until

os.environ["HEADRACE_URL"] = "embedded:./data"
SIGNAL = "support approve refund call-2"

with Queue("tickets") as tickets:
    for number in range(6):
        ticket = f"ticket-{number}"
        asked = f'ask {ticket} {SIGNAL} {{"cents":4200}}'
        effects = ["model 0", "order_of 17", "model 1", asked, "refund 4200", "model 2"]
        Path("ledger.txt").unlink(missing_ok=True)
        Path("died").unlink(missing_ok=True)
        receipt = tickets.enqueue("refund my order", id=ticket)
        with (
            Program("python", "support.py", DIE_AFTER=effects[number]),
            Program("python", "support.py", DIE_AFTER=effects[number]),
        ):
            until(lambda: tickets.counts().blocked == 1, "the wait for approval")
            found = tickets.find(receipt.id)
            assert found is not None
            assert [(one.name, one.state) for one in found.steps] == [
                ("support model", "done"), ("support order_of call-1", "done"),
                ("support model 2", "done"), (f"ask {SIGNAL}", "done"), (SIGNAL, "waiting"),
            ], found.steps  # fmt: skip
            assert tickets.signal(receipt.id, SIGNAL, True, by="ben") == "woke"
            assert receipt.result(timeout=60) == b"4200 cents are refunded"
        assert Path("died").exists()
        times = Counter(Path("ledger.txt").read_text().splitlines())
        # only the step that was cut off ran again
        assert times == Counter([*effects, effects[number]]), (effects[number], times)
    counts = tickets.counts()
    assert (counts.completed, counts.present, counts.lost) == (6, 0, 0), counts
