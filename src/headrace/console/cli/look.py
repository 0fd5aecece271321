"""Commands that look at queues, workers, jobs, results and events. They change nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from itertools import chain, islice
from typing import Annotated, Any

import attrs
import redis
import typer

import headrace
from headrace import Counts, JobState, Queue
from headrace.console.cli.console import nodes_of, open_queue, opened, reported, require, say
from headrace.console.cli.doctor import NUMSUB, TRIAL, Facts, Finding, examine, relays
from headrace.console.cli.options import (
    IdsOrQueue,
    Json,
    Limit,
    Name,
    Names,
    Namespace,
    SomeIds,
    Url,
    on_queue,
    on_server,
)
from headrace.console.cli.output import (
    as_json,
    bounded,
    bytes_of,
    clock,
    job_as_json,
    json_of,
    missing,
    outcome,
    plain,
    print_json,
    print_out,
    show,
    show_each,
    show_fields,
    show_jobs,
    show_values,
    start_of,
    succeed,
)
from headrace.console.timeline import Family, below
from headrace.errors import ConfigurationError, HeadraceError, JobFailed
from headrace.inspect import Attempt, Inspector, QueueView, Step, TrendPoint, WorkerFacts
from headrace.platform import (
    WORDS,
    Discovery,
    OutboxView,
    check_names,
    one_line,
    other_terms,
    text_of,
)

SHOWN_WHOLE_BYTES = 2000  # of the payload of a job that is shown by itself
# on a terminal
COLUMNS = ("waiting", "parked", "leased", "later", "dead", "completed", "workers", "notes")
RATES = {"in/s": "enqueued", "done/s": "completed"}


# Choices of `list --state`, in the order of a list of all. `running` is another name of `leased`.
Shown = StrEnum("Shown", ["LEASED", "RUNNING", "WAITING", "DELAYED", "BLOCKED", "DEAD", "ENDED"])


End = StrEnum("End", ["COMPLETED", "DEAD", "CANCELLED", "DELETED"])  # choices of `list --end`


# -- queues and workers ----------------------------------------------------------------------------


@on_server
def queues(client: redis.Redis, namespace: str, in_json: Json = False) -> None:
    """List the names of all queues."""
    for name in headrace.queues(client, namespace=namespace):
        outcome(in_json, name, {"queue": name})


def views_of(
    inspector: Inspector, client: redis.Redis, names: Sequence[str] | None
) -> list[QueueView]:
    if names:
        for name in names:
            require(client, name, inspector.views.namespace)
        return [inspector.queue(name).queue for name in names]
    found = inspector.overview()
    while not found.whole:
        found = inspector.overview()
    for name, why in found.broken.items():
        raise HeadraceError(f"{name}: {why}")
    return list(found.queues)


def _stats(inspector: Inspector, view: QueueView, *, rates: bool = False) -> dict[str, Any]:
    counts = view.counts
    alive = [worker for worker in view.workers if worker.alive]
    workers = [
        attrs.asdict(worker, filter=lambda field, _: field.name != "queue") for worker in alive
    ]
    due = (
        next(iter(inspector.jobs(view.name, "delayed", limit=1).jobs), None)
        if counts.delayed
        else None
    )
    # of the next due job: why it was retried
    more: dict[str, Any] = {"reason": None if due is None else due.told}
    if view.outbox is not None:
        more["outbox"] = attrs.asdict(view.outbox)
    if rates:
        more |= {
            "lag": round(view.lag, 3),
            "rates": {name: round(value, 3) for name, value in view.rates.items()},
        }
    return {
        **attrs.asdict(counts),
        "later": counts.later,
        "lost": counts.lost,
        "paused": view.paused,
        "workers": workers,
        **more,
    }


def _cell(value: Any) -> object:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return len(value) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType]


def _notes(row: dict[str, Any]) -> str:
    found = ["paused"] if row["paused"] else []
    if (outbox := row.get("outbox")) is not None and (outbox["rows"] or outbox["refused"]):
        found.append(
            f"{outbox['rows']} in the outbox"
            + (f", {outbox['refused']} refused" * bool(outbox["refused"]))
        )
    return ", ".join(found + [f"{row[name]} {name}" for name in ("blocked", "lost") if row[name]])


def show_stats(
    inspector: Inspector, views: list[QueueView], in_json: bool, *, rates: bool = False
) -> None:
    rows = {view.name: _stats(inspector, view, rates=rates) for view in views}
    if in_json:
        print_out(json_of(rows, 2 if sys.stdout.isatty() else None))
        return
    every = [field.name for field in attrs.fields(Counts)] + ["lost", "paused", "workers"]
    columns = [*(COLUMNS if sys.stdout.isatty() else every), *(RATES if rates else ())]

    def cells(row: dict[str, Any]) -> Iterator[object]:
        shown = {**row, "notes": _notes(row)}
        if rates:
            shown |= {column: f"{row['rates'].get(rate, 0):.1f}" for column, rate in RATES.items()}
        return (_cell(shown[column]) for column in columns)

    right = [column for column in columns if column != "notes"]
    show(("queue", *columns), ((name, *cells(row)) for name, row in rows.items()), right=right)


@on_server
def stats(client: redis.Redis, namespace: str, names: Names = None, in_json: Json = False) -> None:
    """Show how many jobs are in each state.

    And the ends of other jobs: by queue, all or some. `lost` is the difference in the law of
    conservation: 0.

    With --json it is one object, by queue: the fields of Counts, later, lost, paused, the live
    workers, reason (why the job that is due next was retried), and outbox, the last report of its
    relay, if it has one.
    """
    with Inspector(client=client, namespace=namespace, fresh=0.0) as inspector:
        show_stats(inspector, views_of(inspector, client, names), in_json)


@on_server
def workers(
    client: redis.Redis, namespace: str, names: Names = None, in_json: Json = False
) -> None:
    """List the workers of queues.

    Since when, whether they are alive, how many jobs each has leased, and where and by which
    version each runs.
    """
    for name in names or ():
        require(client, name, namespace)
    found = [
        one
        for one in headrace.workers(client, namespace=namespace)
        if not names or one.queue in names
    ]
    states = {"quiet": "quiet", "stop": "stopping"}
    cells = (
        [
            x.queue,
            x.name,
            clock(x.since),
            states.get(x.asked, "yes") if x.alive else "no",
            x.leased,
            *_machine(x.facts),
        ]
        for x in found
    )
    head = (
        "queue",
        "worker",
        "since",
        "alive",
        "leased",
        "slots",
        "machine",
        "pid",
        "version",
        "MiB",
        "children",
    )
    show_values(found, in_json, head, cells, right=("leased", "slots", "pid", "MiB"))


def _machine(facts: WorkerFacts | None) -> tuple[object, ...]:
    if facts is None:
        return ("",) * 6
    slots = f"{facts.slots} (code: {facts.own})" if facts.own else facts.slots
    its = slots, facts.host, facts.pid, facts.version, facts.memory >> 20
    children = facts.children
    if not children:
        return *its, ""
    jobs = sum(one.jobs for one in children)
    busy = sum(bool(one.job) for one in children)
    used = sum(one.memory for one in children) >> 20
    oldest = clock(min(one.since for one in children))
    text = f"{len(children)}: {busy} busy, {jobs:,} jobs, {used:,} MiB, since {oldest}"
    return *its, text


@on_queue
def shards(queue: Queue, in_json: Json = False) -> None:
    """List the shards of a queue.

    The state, the slot and the node of each, and how many jobs are in each state; none of a queue
    that is not sharded. Other commands take a sharded queue like any other.
    """
    found = queue.admin.shards()
    columns = [field.name for field in attrs.fields(Counts)]
    cells = (
        [x.number, x.state, x.slot, x.node, *(getattr(x.counts, column) for column in columns)]
        for x in found
    )
    head = ("shard", "state", "slot", "node", *columns)
    show_values(found, in_json, head, cells, right=("shard", "slot", *columns))


@on_server
def shares(client: redis.Redis, namespace: str, name: Name, in_json: Json = False) -> None:
    """List the busiest values of a fair queue.

    The ten that had the most of the workers' time of late, then the ten that have waited for
    longest: running and waiting jobs, the waits that half and 95 % of their jobs stayed below, the
    seconds used, and the age of the oldest waiting job.
    """
    require(client, name, namespace)
    with Inspector(client=client, namespace=namespace) as inspector:
        page = inspector.queue(name)
    if not page.fair:
        raise HeadraceError(
            f"{name} is not fair: declare it with fair=, in the worker that serves it"
        )
    found = page.shares
    columns = ("value", "running", "waiting", "p50", "p95", "used", "oldest")
    cells = (
        [plain(x.name), x.running, x.waiting, *map(_seconds, (x.p50, x.p95, x.used, x.oldest))]
        for x in found
    )
    show_values(found, in_json, columns, cells, right=columns[1:])


def _seconds(value: float | None) -> str:
    return "" if value is None else f"{value:.3g} s"


class Every(StrEnum):
    MINUTE = "minute"
    HOUR = "hour"


@on_server
def trends(
    client: redis.Redis,
    namespace: str,
    name: Name,
    every: Annotated[
        Every, typer.Option(help="How far apart: minutes of two days, hours of 90.")
    ] = Every.MINUTE,
    limit: Annotated[
        int | None, typer.Option(min=1, show_default=False, help="The last so many; else all.")
    ] = None,
    in_json: Json = False,
) -> None:
    """Show the past counts of a queue.

    Of a queue that is declared with trends=True, from then on; exits with 1 if it has none.

    With --json a line each: at; waiting, leased, later, dead and lag then; and enqueued, completed
    and removed in the seconds before.
    """
    require(client, name, namespace)
    if (number := Discovery(client, namespace).shards(name)) > 1:
        raise ConfigurationError(f"{name} has {number} shards: see headrace shards {name}")
    with Inspector(client=client, namespace=namespace) as inspector:
        found = inspector.trends(name, every.value, limit)
    if not found.kept:
        raise HeadraceError(
            f"{name} keeps none: declare it with trends=True, in the worker that serves it"
        )
    at, *columns = [field.name for field in attrs.fields(TrendPoint)]
    cells = (
        (clock(one.at), *(f"{getattr(one, column):g}" for column in columns))
        for one in found.points
    )
    show_values(found.points, in_json, (at, *columns), cells, right=columns)


# -- jobs ------------------------------------------------------------------------------------------


def _listed(
    queue: Queue, wanted: Shown | None, kind: str | None, end: str | None
) -> Iterator[JobState[Any]]:
    if wanted is Shown.ENDED:
        return queue.admin.ended(kind=kind, state=end)
    if kind or end:
        raise ConfigurationError(
            "--kind and --end choose among jobs that have ended: add --state ended"
        )
    if wanted is None:
        return chain.from_iterable(_listed(queue, state, None, None) for state in list(Shown)[1:-1])
    found: Iterator[JobState[Any]] = getattr(
        queue.admin, "running" if wanted is Shown.LEASED else wanted
    )()
    return found


@on_queue
def list_jobs(
    queue: Queue,
    state: Annotated[
        Shown | None, typer.Option(help="Only jobs in this state; else all, in this order.")
    ] = None,
    kind: Annotated[
        str | None, typer.Option(show_default=False, help="With --state ended: of this kind only.")
    ] = None,
    end: Annotated[
        End | None, typer.Option(show_default=False, help="With --state ended: that ended so only.")
    ] = None,
    limit: Limit = None,
    in_json: Json = False,
) -> None:
    """List the jobs of a queue.

    List running, waiting, delayed and blocked jobs, and dead letters; with --state ended, the ended
    jobs of its history. On a terminal it shows each job's kind, and how long its last attempt took.
    """
    show_jobs(bounded(_listed(queue, state, kind, end), limit), in_json)


@on_queue
def find(queue: Queue, ids: SomeIds, in_json: Json = False) -> None:
    """Show the state of jobs.

    With its beginning or end, the worker, and the reason. In a queue with a history a job may also
    be completed, cancelled or deleted.
    """
    found = [state for one in ids if (state := queue.find(one)) is not None]
    if found:
        show_jobs(found, in_json)
    missing(len(ids) - len(found), len(ids), f"no such job in {queue.name}")


@on_server
def show_job(
    client: redis.Redis, namespace: str, name: Name, ids: IdsOrQueue = None, in_json: Json = False
) -> None:
    """Show all there is to know of jobs, or of a queue.

    Of a job also its headers, position, attempts and steps, and the children of its children.
    """
    if not ids:
        _show_queue(client, namespace, name, in_json)
        return
    with open_queue(client, name, namespace) as queue:
        found: list[tuple[JobState, int | None, Family]] = []
        for one in ids:
            if (state := queue.find(one)) is not None:
                waits = state.state in ("waiting", "parked")
                with Inspector(client=client, namespace=namespace) as inspector:
                    family = inspector.descendants(state.steps)
                found.append((state, queue.admin.position(one) if waits else None, family))
        show_each(found, in_json, lambda row: _whole_as_json(*row), lambda row: _fields(*row))
        missing(len(ids) - len(found), len(ids), f"no such job in {name}")


def _show_queue(client: redis.Redis, namespace: str, name: str, in_json: bool) -> None:
    require(client, name, namespace)
    with Inspector(client=client, namespace=namespace) as inspector:
        page = inspector.queue(name)
        row = {"queue": name, **_stats(inspector, page.queue), "priorities": page.queue.levels}
    if page.queue.shards:
        row["shards"] = len(page.queue.shards)
    if in_json:
        print_json({**row, "schedules": [attrs.asdict(one) for one in page.schedules]})
        return
    show_fields(
        [(field, _cell(value)) for field, value in row.items()]
        + [("schedules", len(page.schedules))]
    )


def _whole_as_json(state: JobState, position: int | None, family: Family) -> dict[str, Any]:
    steps = [
        {
            **attrs.asdict(step),
            "result": None,
            **_result_as_json(step),
            "children": _children_as_json(step, family),
        }
        for step in state.steps
    ]
    progress = None if state.progress is None else attrs.asdict(state.progress)
    run = {"deliveries": state.deliveries, "took": state.took, "overcome": state.overcome}
    return {**job_as_json(state), **run, "position": position, "progress": progress, "steps": steps}


def _children_as_json(step: Step, family: Family) -> list[dict[str, Any]]:
    return [
        {**attrs.asdict(one), "children": _children_as_json(one, family)}
        for one in family.get((step.queue or "", step.child or ""), ())
    ]


def _result_as_json(step: Step) -> dict[str, str]:
    return (
        {}
        if step.result is None
        else as_json("result", text_of(step.result)[1].encode("utf-8", "surrogatepass"))
    )


def _step_line(step: Step) -> str:
    took = None if step.ended is None else f"took {step.ended - step.began:.3g} s"
    sender = f" by {plain(step.by)}" if step.by else ""
    sent = None if step.sent is None else f"sent {clock(step.sent)}{sender}"
    due = None if step.due is None or step.ended is not None else f"due {clock(step.due)}"
    result = None if step.result is None else one_line(text_of(step.result)[1])
    omitted = f"its value of {step.omitted:,} bytes is not kept" if step.omitted else None
    attempt = f"attempt {step.attempt}" if step.attempt else None
    began = clock(step.began) if step.began else None
    child = step.child and f"{step.state} as {plain(step.child)} of {plain(step.queue or '')}"
    parts = (child or step.state, attempt, began, took, due, sent, result, omitted)
    return f"{plain(step.name)}: {', '.join(part for part in parts if part)}"


def _attempt_line(one: Attempt) -> str:
    took = None if one.took is None else f"took {one.took:.3g} s"
    why = "suspended" if one.suspended else one_line(one.reason or one.error or "") or "completed"
    return ", ".join(
        filter(None, (str(one.number), clock(one.ended), took, plain(one.worker or ""), why))
    )


def _fields(state: JobState, position: int | None, family: Family) -> Iterator[tuple[str, object]]:
    job = state.job
    payload = bytes_of(job.payload)
    first: dict[str, object] = {
        "id": plain(job.id),
        "state": state.state,
        "waits for": "; ".join(
            f"{plain(step.name)}, since {clock(step.began)}"
            + (f", until {clock(step.due)}" if step.due else "")
            for step in state.steps
            if step.state in ("waiting", "sleeping") and state.state in ("blocked", "delayed")
        ),
        "attempt": job.attempt,
        "deliveries": state.deliveries or None if state.steps else None,
        "took": None if state.took is None else f"{state.took:.3g} s",
        "priority": job.priority or None,
        "before it": None if position is None else f"{position} jobs",
        "enqueued": clock(state.enqueued_at),
        "since": clock(state.since),
        "due": clock(state.due),
        "worker": plain(state.worker or ""),
    }
    yield from first.items()
    if state.progress is not None:
        yield "progress", f"{state.progress.fraction:.0%} {plain(state.progress.text)}".rstrip()
    for step in state.steps:
        yield "step", _step_line(step)
        for deep, child in below(step, family):
            yield "child", f"{'  ' * deep}↳ {_step_line(child)}"
    for one in state.attempts:
        yield "attempted", _attempt_line(one)
    if (children := state.children) is not None:
        yield "children", children.told
        for place in children.places:
            yield "child", f"{plain(place.id)}: {place.state} in {place.stage}"
    if state.overcome:
        yield "failed before", one_line(state.reason or "")
    else:
        yield "reason", plain(state.reason or "")
        for line in (state.traceback or "").splitlines():
            yield "traceback", plain(line)
    for header, text in job.headers.items():
        yield plain(header), plain(text)
    long = f" ({len(payload)} bytes; --json shows all)" if len(payload) > SHOWN_WHOLE_BYTES else ""
    yield "payload", start_of(payload, SHOWN_WHOLE_BYTES) + long


@on_queue
def result(
    queue: Queue,
    ids: SomeIds,
    timeout: Annotated[float, typer.Option(min=0, help="Seconds to wait for it.")] = 0.0,
    in_json: Json = False,
) -> None:
    """Print the results of jobs.

    The bytes as they are, without a line ending if standard output is no terminal. Several ids make
    a table, or with --json a line each: result, or result_hex if it is not UTF-8.

    If a job has no result it exits with 1, and says why, as far as known: it goes on, or is dead,
    cancelled or deleted. With --json a failed job has its state and reason.
    """
    kept = queue.results(ids, timeout)
    found = {one: kept[one] for one in ids if one in kept}  # in this order
    ended = {one: _why_no_result(queue, one) for one in ids if one not in kept}
    if in_json:
        for one, data in found.items():
            print_json({"id": one, **as_json("result", data)})
        for one, failed in ended.items():
            if isinstance(failed, JobFailed):
                print_json(
                    {"id": one, "result": None, "state": failed.state, "reason": failed.reason}
                )
    elif len(ids) > 1:
        if found:
            show(("id", "result"), ((plain(one), start_of(data)) for one, data in found.items()))
    else:
        for data in found.values():
            _write(data)
    wanted = len(set(ids))
    why = "; ".join(sorted({plain(str(one)) for one in ended.values() if one is not None})[:5])
    missing(wanted - len(found), wanted, why or "no result")


def _why_no_result(queue: Queue, id: str) -> Exception | None:
    try:
        queue.result(id)
    except (JobFailed, TimeoutError) as error:
        return error
    return None


def _write(data: bytes) -> None:
    if sys.stdout.isatty():
        print_out(start_of(data, SHOWN_WHOLE_BYTES))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(data)


# -- events ----------------------------------------------------------------------------------------


def events(
    name: Name,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on until you press Ctrl-C.")
    ] = False,
    kind: Annotated[
        list[str] | None,
        typer.Option(help=f"One of {', '.join(WORDS.event_kinds)}; may be repeated."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            min=0.001, show_default=False, help="End after so many quiet seconds; else 5."
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="End after so many.")] = None,
    in_json: Json = False,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """Print events of jobs as they happen.

    From now on: past events are kept nowhere.
    """
    if follow and timeout is not None:
        raise typer.BadParameter("give --follow or --timeout, not both")
    quiet = None if follow else timeout or 5.0
    with reported(), opened(name, url, namespace) as queue, queue.events(kind, quiet) as stream:
        say(f"listening to {name}")
        for event in islice(stream, limit):
            if in_json:
                print_json(attrs.asdict(event))
            else:
                texts = [event.kind, plain(event.id or ""), plain(event.worker or "")]
                texts += [plain(event.reason)] if event.reason else []
                print_out("\t".join((clock(event.at), *texts)))
            sys.stdout.flush()


# -- doctor ----------------------------------------------------------------------------------------


@on_server
def doctor(client: redis.Redis, namespace: str, in_json: Json = False) -> None:
    """Examine the version, settings and rights of a server.

    Version, role, cluster mode, eviction, losses by a power cut, scripts on a stream and Pub/Sub in
    scripts with this user, WAITAOF, replicas, clock. On a cluster each primary is examined.

    It looks at the relays of outboxes, too: broken is one that has not reported for a minute. And
    at a thousand queues at most: fair ones of which no job has the header, and live workers that
    declare other terms than the queue has.

    A line for each check says ok, note, or broken if a promise is broken. Then the exit code is 1.
    With --json an object a line has check, state and text, and on a cluster node. It writes one key
    of the namespace, and deletes it again.
    """
    check_names(namespace=namespace)
    broken = False
    for place, found in _findings(client, namespace):
        broken = broken or found.state == "broken"
        row = [*([place] if place else []), found.state, found.check, found.text]
        node = {"node": place} if place else {}
        outcome(in_json, "\t".join(row), {**attrs.asdict(found), **node})
    succeed(not broken)


def _findings(client: redis.Redis, namespace: str) -> Iterator[tuple[str, Finding]]:
    cluster = isinstance(client, redis.RedisCluster)
    trial = _asked(client.eval, TRIAL, 1, f"{namespace}:{{doctor}}:doctor:doctor")
    yield from (("", found) for found in relays(_outboxes(client, namespace)))
    for node, place in nodes_of(client):
        yield from ((place, found) for found in examine(_facts(node, trial, namespace, cluster)))
    yield from (("", found) for found in _queues(client, namespace))


def _queues(client: redis.Redis, namespace: str) -> Iterator[Finding]:
    """Yield notes on slots that do not fit the leased jobs, on workers that declare other terms
    than their queue has, on builds that runs wait for in vain, and on headers of `fair` that no job
    of the busiest values has.
    """
    with (
        suppress(redis.RedisError, HeadraceError),
        Inspector(client=client, namespace=namespace) as inspector,
    ):
        # each takes a few round trips
        for name in islice(headrace.queues(client, namespace=namespace), 1000):
            page = inspector.queue(name)
            if page.queue.counts.held not in (0, page.queue.counts.leased):
                yield Finding(
                    "slots",
                    "note",
                    f"queue {name}: {page.queue.imbalance}; `headrace repair {name}` mends them",
                )
            if text := other_terms(page.queue, page.now):
                yield Finding(
                    "terms",
                    "note",
                    f"queue {name}: {text}; `headrace redeclare {name}` changes the queue's",
                )
            if text := page.queue.missing_builds:
                yield Finding("build", "broken", f"queue {name}: {text}")
            for at, header in enumerate(page.fair if page.shares else ()):
                if all(share.value[at] is None for share in page.shares):
                    yield Finding(
                        "fair",
                        "note",
                        f"queue {name}: no job has the header {header!r}, by which it is fair",
                    )


def _outboxes(client: redis.Redis, namespace: str) -> dict[str, OutboxView | None]:
    with (
        suppress(redis.RedisError, HeadraceError),
        Inspector(client=client, namespace=namespace) as inspector,
    ):
        return {one.name: one.outbox for one in inspector.overview().queues}
    return {}  # for a user that may not look at queues


def _asked(call: Any, *args: Any) -> Any:
    try:
        return call(*args)
    except redis.ResponseError as error:
        return error


def _facts(client: Any, trial: Any, namespace: str, cluster: bool) -> Facts:
    info = _asked(client.info)
    now = _asked(client.time)
    settings: dict[str, str] = {}
    for name in ("appendfsync", "save", "min-replicas-to-write"):
        found = _asked(client.config_get, name)
        settings |= found if isinstance(found, dict) else {}
    channel = f"{namespace}:{{doctor}}:doctor:told"
    return Facts(
        {} if isinstance(info, Exception) else info,
        settings,
        trial,
        None if cluster else _asked(client.eval, NUMSUB, 1, channel),
        _asked(client.execute_command, "WAITAOF", 1, 0, 1),
        0.0 if isinstance(now, Exception) else now[0] + now[1] / 1e6 - time.time(),
        cluster,
    )
