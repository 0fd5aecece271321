"""Enqueueing under conditions, as calls of several round trips: waiting for room, and going on where time was short."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace._core.calls import said_what_is_in
from headrace._core.effects import Step, await_room, current_time, pass_turn, send
from headrace._model.checks import Context
from headrace._model.receipt import Receipt
from headrace._protocol.admission import Admission, Item, Refusal
from headrace.errors import NotDurable, QueueFull

ASK_AGAIN_S = 1.0  # seconds after which a producer that waits asks again, whatever it was told


def admit(
    admission: Admission, items: Sequence[Item], limit: float | None, *, since: float | None = None,
    together: bool = True,
) -> Step[list[Receipt]]:  # fmt: skip
    """Add *items*, those of one script; wait for room for *limit* seconds, `None` not at all.

    *since*: when that time began. *together*: all or none of them. Raises `QueueFull`, and `NotDurable`.
    """
    start = (yield from current_time()) if since is None else since
    receipts: dict[int, Receipt] = {}
    left = list(range(len(items)))
    late: NotDurable | None = None
    waited = False
    while left:
        some = [items[i] for i in left]
        if together:
            op = admission.part(some, awaits=limit is not None)
        else:
            op = admission.single(some) if limit is None else admission.single_awaiting(some)
        try:
            answers = yield from send(op)
        except NotDurable as error:
            late, (answers,) = error, error.answers
        refused: Refusal | None = None
        for i, answer in zip(left, answers, strict=True):
            if isinstance(answer, Receipt):
                receipts[i] = answer
            elif answer.full:
                refused = answer
        left = [i for i in left if i not in receipts]
        if refused is None:
            continue
        end = start + limit if limit is not None else 0.0
        rest = end - (yield from current_time()) if limit is not None else 0.0
        if rest > 0:
            waited = True
            room = yield from await_room(admission.wait(refused.last, min(rest, ASK_AGAIN_S)), rest)
            rest = 1.0 if room else end - (yield from current_time())
        if rest <= 0:
            raise QueueFull(refused.waiting, admission.most)
    if waited:
        yield from pass_turn()
    made = [receipts[i] for i in range(len(items))]
    if late is not None:
        late.receipts = made
        raise late
    return made


def admit_many(
    admission: Admission, jobs: Iterable[Any], limit: float | None, *, whole: bool, context: Context | None = None,
    bind: Callable[[list[Receipt]], object] = len,
) -> Step[list[Receipt]]:  # fmt: skip
    """Like `calls.enqueue_many`, part by part; *limit* is for each part, or for the *whole* of them."""
    receipts: list[Receipt] = []
    since = (yield from current_time()) if whole else None
    try:
        for items in admission.parts(jobs, context):
            some = yield from admit(admission, items, limit, since=since)
            bind(some)
            receipts += some
    except Exception as error:
        if isinstance(error, NotDurable):  # of a part that is in
            bind(error.receipts)
            receipts += error.receipts
        said_what_is_in(error, receipts)
        raise
    return receipts
