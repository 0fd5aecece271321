# /// script
# requires-python = ">=3.11"
# dependencies = ["headrace[embedded]", "pydantic-ai-slim"]
# ///
"""An agent. Its requests and tool calls are steps, and its approval is a signal. Its worker is
killed after each step.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

from headrace import Queue

from programs import Program, until

os.environ["HEADRACE_URL"] = "embedded:./data"
EFFECTS = ["model 0", "order_of 17", "model 1", "model 2", "refund 4200", "model 3"]

with Queue("tickets") as tickets:
    for number, effect in enumerate(EFFECTS):
        Path("ledger.txt").unlink(missing_ok=True)
        Path("died").unlink(missing_ok=True)
        receipt = tickets.enqueue("refund my order", id=f"ticket-{number}")
        with (
            Program("python", "support.py", DIE_AFTER=effect),
            Program("python", "support.py", DIE_AFTER=effect),
        ):
            until(lambda: tickets.counts().blocked == 1, "the wait for approval")
            found = tickets.find(receipt.id)
            assert found is not None
            assert [(one.name, one.state) for one in found.steps] == [
                ("model-1", "done"), ("order_of-1", "done"), ("model-3", "done"), ("approval", "waiting"),
            ], found.steps  # fmt: skip
            assert tickets.signal(receipt.id, "approval", {"by": "ben"}) == "woke"
            assert receipt.result(timeout=60) == b"4200 cents are refunded"
        assert Path("died").exists()
        times = Counter(Path("ledger.txt").read_text().splitlines())
        # only the step that was cut off ran again
        assert times == Counter([*EFFECTS, effect]), (effect, times)
    counts = tickets.counts()
    assert (counts.completed, counts.present, counts.lost) == (len(EFFECTS), 0, 0), counts
