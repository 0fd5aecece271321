"""The facts about queues and their server that need attention. This module is pure.

The oldest job that is next has waited over its usual if two things hold. It has waited for more
than a minute, and for more than three times the median of the queue's trends in the last twelve
hours. Where there are fewer than ten such records, it may wait for five minutes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from attrs import frozen

from headrace._model.policy import declared_rates, divided
from headrace._model.state import Counts, OtherTerms
from headrace._model.terms import in_words
from headrace._model.views.overview import Attention, ServerFacts
from headrace._model.views.queues import QueueView, program_name
from headrace._model.views.texts import one_line, span
from headrace._model.views.trends import TrendPoint
from headrace._protocol.view_ops import Signs

HOUR_S = 3600  # seconds for which dead letters are new
LAG_S = 60.0  # seconds that a job may always wait
NAMED = 3  # workers with other terms
FULL = 0.9  # of the server's memory


NO_SIGNS = Signs()


@frozen
class Look:
    """A closer look at a queue. It has its signs of trouble, and the usual wait of its oldest job
    in seconds (`usual`).
    """

    signs: Signs = NO_SIGNS
    usual: float | None = None
    admits: bool = True
    """Whether the rate limits of the whole queue admit a job, in each shard where jobs wait."""


NONE = Look()


def usual_lag(points: Sequence[TrendPoint]) -> float | None:
    return median(one.lag for one in points) if len(points) >= 10 else None


def admits(declared: str, buckets: Sequence[int], share: float = 1.0) -> bool:
    """Tell whether the rate limits of the whole queue admit a job. *declared* has the limits in the
    words of their declaration. *buckets* has the ms until the bucket of each is full, in a shard
    with this *share* of all keys.
    """
    for (limit, per, key, burst, per_shard), full in zip(
        declared_rates(declared), buckets, strict=False
    ):
        step = 1000 * per / limit
        tokens = limit if burst is None else burst
        if per_shard:
            step, tokens = divided(step, tokens, share)
        if key is None and full > (tokens - 1) * step + 1:
            return False
    return True


def lag_allowed(usual: float | None) -> float:
    return 300.0 if usual is None else max(LAG_S, 3.0 * usual)  # where no usual wait is known


def attention(
    queues: Sequence[QueueView],
    looks: Mapping[str, Look],
    broken: Mapping[str, str],
    server: ServerFacts | None = None,
    refused: int = 0,
    *,
    now: float = 0.0,
) -> tuple[Attention, ...]:
    """List the facts that need attention, the worst first. *refused* has the commands that the full
    server refused of late. *now* is the time of the server's clock.
    """
    found = [*_of_server(server, refused)]
    found += [
        Attention("unreadable", name, f"can't be read: {why}", bad=True)
        for name, why in broken.items()
    ]
    found += [one for queue in queues for one in _of_queue(queue, looks.get(queue.name, NONE), now)]
    return tuple(sorted(found, key=lambda one: not one.bad))


def _of_server(server: ServerFacts | None, refused: int) -> Iterator[Attention]:
    if server is None:
        return
    if refused > 0:
        yield Attention(
            "server", "", f"out of memory: it has refused {refused:,} commands of late", bad=True
        )
    elif server.full >= FULL:
        yield Attention("server", "", f"{server.full:.0%} of its memory is used", bad=True)


def _of_queue(queue: QueueView, look: Look, now: float) -> Iterator[Attention]:
    counts = queue.counts
    name = queue.name
    signs = look.signs
    waiting = counts.waiting + counts.parked
    if queue.imbalance:
        yield Attention(
            "unbalanced", name, f"the counts do not add up: {queue.imbalance}", bad=True
        )
    if waiting and not queue.alive and not queue.paused:
        yield Attention("no worker", name, f"{_jobs(waiting)}, and no worker is alive", bad=True)
    if letters := min(signs.letters, counts.dead):  # some may have gone since
        number = f"at least {letters:,}" if signs.more else f"{letters:,}"
        text = f"{number} new dead {'letter' if letters == 1 else 'letters'} in the last hour"
        yield Attention("dead", name, text, bad=True)
    if signs.kinds and waiting + counts.delayed:
        kinds = ", ".join(one_line(kind, 60) or "jobs without a kind" for kind in signs.kinds)
        yield Attention("unknown kind", name, f"no worker has a handler for {kinds}", bad=True)
    elif unhandled := min(signs.unhandled, counts.dead):
        yield Attention(
            "unknown kind", name, f"{_jobs(unhandled, 'died')}: no worker had a handler", bad=True
        )
    if text := queue.missing_builds:
        yield Attention("build", name, text, bad=True)
    if queue.outbox is not None and queue.outbox.dead:
        yield Attention(
            "outbox",
            name,
            f"the relay of its outbox is dead, {queue.outbox.rows:,} rows wait",
            bad=True,
        )
    if queue.outbox is not None and queue.outbox.refused:
        yield Attention(
            "outbox",
            name,
            f"{_rows(queue.outbox.refused)} of its outbox can't be relayed",
            bad=True,
        )
    if queue.paused:
        yield Attention("paused", name, "paused" + (f", {_jobs(waiting)}" if waiting else ""))
    if waiting and not queue.paused and queue.lag > lag_allowed(look.usual):
        usual = "" if look.usual is None else f", usually {span(look.usual)}"
        yield Attention("oldest", name, f"the oldest job has waited {span(queue.lag)}{usual}")
    yield from _held_back(name, counts, look)
    if text := other_terms(queue, now):
        yield Attention("terms", name, text)


def _held_back(name: str, counts: Counts, look: Look) -> Iterator[Attention]:
    waiting = counts.waiting + counts.parked
    if held := min(look.signs.held, counts.delayed):
        yield Attention(
            "rate", name, f"a rate limit holds back {held:,} {'job' if held == 1 else 'jobs'}"
        )
    elif waiting and not look.admits:
        yield Attention("rate", name, f"a rate limit holds back the jobs, {_jobs(waiting)}")


def other_terms(queue: QueueView, now: float) -> str:
    """Name the live workers that declare other terms than the queue has, and since when they do.
    Returns '' for no worker.
    """
    found: dict[str, OtherTerms] = {}
    for worker in queue.workers:
        if worker.alive and worker.differs is not None:
            found.setdefault(program_name(worker.name), worker.differs)
    if not found:
        return ""
    some = [
        f"{one_line(name, 60)} {in_words(one_line(its.structure))} for {span(max(0.0, now - its.since))}"
        for name, its in list(found.items())[:NAMED]
    ]
    more = [f"{len(found) - NAMED} more"] if len(found) > NAMED else []
    number = f"{len(found)} worker declares" if len(found) == 1 else f"{len(found)} workers declare"
    return f"{number} other terms than the queue's, {in_words(one_line(queue.terms))}: {', '.join(some + more)}"


def _rows(number: int) -> str:
    return f"{number:,} row{'' if number == 1 else 's'}"


def _jobs(number: int, verb: str = "") -> str:
    return (
        f"{number:,} job{'' if number == 1 else 's'} {verb or ('waits' if number == 1 else 'wait')}"
    )
