"""Enqueueing under conditions, as calls of several round trips. They wait for room, and continue if
time ran out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headrace._core.effects import AwaitRoom, Call, Now, PassTurn, Sleep, send
from headrace._core.queue.calls import said_what_is_in
from headrace._model.checks import Context
from headrace._model.receipt import Receipt
from headrace._model.shards import Sealed
from headrace._protocol.features.conditions import Admission, Item, Refusal
from headrace._protocol.limits import ATTEMPT_S, POLL_S
from headrace.errors import NotDurable

ROUND_S = 0.1  # seconds that must remain to ask other shards
# adds to another shard, or says that all are full
Elsewhere = Callable[[], Call["list[Receipt] | None"]]


def admit(
    admission: Admission,
    items: Sequence[Item],
    limit: float | None,
    *,
    since: float | None = None,
    together: bool = True,
    elsewhere: Elsewhere | None = None,
) -> Call[list[Receipt]]:
    """Add the *items* of one script.

    Wait for room for *limit* seconds from *since* on (`None`: do not wait). *together*: add all or
    none of them. *elsewhere* is called now and then while there is no room, to add them to another
    shard. Raises `QueueFull` and `NotDurable`. For a single item, or items that go *together*,
    raises also `Sealed` if an item is new and the shard takes no new jobs.
    """
    start = (yield from Now()) if since is None else since
    receipts: dict[int, Receipt] = {}
    left = list(range(len(items)))
    late: NotDurable | None = None
    waited = False
    while left:
        some = [items[i] for i in left]
        if together:
            op = admission.chunk(some, awaits=limit is not None)
        else:
            op = admission.single(some) if limit is None else admission.single_awaiting(some)
        try:
            answers = yield from send(op)
        except NotDurable as error:
            late = error
            (answers,) = error.answers
        if (
            sealed := next((answer for answer in answers if isinstance(answer, Sealed)), None)
        ) is not None:
            raise sealed
        receipts |= {
            i: answer
            for i, answer in zip(left, answers, strict=True)
            if isinstance(answer, Receipt)
        }
        refused = next(
            (answer for answer in answers if isinstance(answer, Refusal) and answer.full), None
        )
        left = [i for i in left if i not in receipts]
        if refused is None:
            continue
        rest = yield from _rest(start, limit)
        if rest > 0:
            waited = True
            room = yield from AwaitRoom(admission.wait(refused.last, min(rest, POLL_S)), rest)
            rest = 1.0 if room else (yield from _rest(start, limit))
            if (
                not room
                and rest > ROUND_S
                and elsewhere is not None
                and (made := (yield from elsewhere()))
            ):
                yield PassTurn()
                return made
            if not room and 0 < rest < ATTEMPT_S:
                yield Sleep(rest)
                rest = 0.0
        if rest <= 0:
            raise admission.full(refused.waiting)
    if waited:
        yield PassTurn()
    made = [receipts[i] for i in range(len(items))]
    if late is not None:
        late.receipts = made
        raise late
    return made


def _rest(start: float, limit: float | None) -> Call[float]:
    return 0.0 if limit is None else start + limit - (yield from Now())


def admit_many(
    admission: Admission,
    jobs: Iterable[Any],
    limit: float | None,
    *,
    whole: bool,
    context: Context | None = None,
    bind: Callable[[list[Receipt]], object] = len,
) -> Call[list[Receipt]]:
    """Like `enqueue_many`, part by part. *limit* bounds each part, or the *whole* call."""
    receipts: list[Receipt] = []
    since = (yield from Now()) if whole else None
    try:
        for items in admission.chunks(jobs, context):
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
