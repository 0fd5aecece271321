"""The operation for reports on the SQL outbox of a queue."""

from __future__ import annotations

from typing import Any

from headrace._model.views.outbox import OutboxView
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import text


def relayed(ops: Ops, view: OutboxView | None = None) -> Op[OutboxView | None]:
    """Keep a report on the SQL outbox of a queue, or read the last one. The answer is `None` if
    there is none."""

    def decode(reply: Any) -> OutboxView | None:
        age, *words = reply
        said = dict(zip(map(text, words[::2]), map(text, words[1::2]), strict=False))
        if age < 0 or not said.keys() >= {"relay", "rows", "oldest", "refused"}:
            return None
        oldest = int(said["oldest"]) / 1000
        ended = said.get("ended") == "1"
        refused = int(said["refused"])
        why = said.get("why", "")
        return OutboxView(said["relay"], int(said["rows"]), oldest, refused, ended, age / 1000, why)

    fields: list[str] = []
    if view is not None:
        given: dict[str, object] = {
            "relay": view.relay,
            "rows": view.rows,
            "oldest": round(view.oldest * 1000),
            "refused": view.refused,
            "why": view.why,
            "ended": int(view.ended),
        }
        fields = [str(part) for pair in given.items() for part in pair]
    return ops.op("relayed", fields, decode)
