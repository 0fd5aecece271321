"""The commands of `headrace flows`, which look at flows and end runs. Only workers take their
steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain
from typing import Annotated, Any

import redis
import typer

from headrace import FlowState, queues
from headrace.console.cli.change import each
from headrace.console.cli.options import Json, Limit, SomeIds, on_server, verbs
from headrace.console.cli.output import (
    as_json,
    bounded,
    clock,
    missing,
    plain,
    print_json,
    show,
    show_each,
    start_of,
)
from headrace.errors import ConfigurationError
from headrace.platform import Discovery, check_names

FlowName = Annotated[str, typer.Argument(metavar="FLOW", show_default=False)]
group = verbs("List the runs of flows, show them, cancel them.")


class Shown(StrEnum):
    RUNNING = "running"
    BLOCKED = "blocked"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


@group.command("list")
@on_server
def list_runs(
    client: redis.Redis,
    namespace: str,
    flow: Annotated[
        str | None, typer.Argument(metavar="FLOW", help="All, if none is given.")
    ] = None,
    state: Annotated[Shown | None, typer.Option(help="Only runs in this state; else all.")] = None,
    limit: Limit = None,
    in_json: Json = False,
) -> None:
    """List runs of flows.

    They are under way, or have ended within result_ttl, in no order. It scans the server.
    """
    if flow is not None:
        _stages(client, flow, namespace)

    runs = Discovery(client, namespace).runs(flow)
    rows = bounded(
        ((name, run) for name, run in runs if state is None or run.state == state.value), limit
    )
    if in_json:
        for name, run in rows:
            print_json(_run_as_json(name, run))
        return
    cells = (
        [
            name,
            plain(run.id),
            run.state,
            run.stage,
            clock(run.started_at),
            clock(run.ended_at),
            run.pending or "",
        ]
        for name, run in rows
    )
    show(("flow", "id", "state", "stage", "started", "ended", "pending"), cells, right=("pending",))


def _stages(client: redis.Redis, flow: str, namespace: str) -> list[str]:
    check_names(flow, namespace)
    found = [
        name.partition("/")[2]
        for name in queues(client, namespace=namespace)
        if name.startswith(f"{flow}/")
    ]
    if not found:
        raise ConfigurationError(f"there is no flow {flow} in namespace {namespace}")
    return found


def _run_as_json(flow: str, run: FlowState, stages: Iterable[str] = ()) -> dict[str, Any]:
    children = [
        {"name": name, **({} if data is None else as_json("result", data))}
        for name, data in run.children.items()
    ]
    results = {
        stage: as_json("result", run.results[stage]) for stage in stages if stage in run.results
    }
    return {
        "id": run.id,
        "flow": flow,
        "state": run.state,
        "stage": run.stage,
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "reason": run.reason,
        "attributes": dict(run.attributes),
        "pending": run.pending,
        "failed": list(run.failed),
        "children": children,
        "results": results,
    }


@group.command("show")
@on_server
def show_runs(
    client: redis.Redis, namespace: str, flow: FlowName, ids: SomeIds, in_json: Json = False
) -> None:
    """Show all there is to know of runs, or of their children.

    Where they are, why they have failed, and the results of their stages.
    """
    stages = _stages(client, flow, namespace)
    with Discovery(client, namespace).flow(flow, stages) as found:
        runs = [run for run in found.states(ids) if run is not None]
    show_each(
        runs, in_json, lambda run: _run_as_json(flow, run, stages), lambda run: _fields(run, stages)
    )
    missing(len(ids) - len(runs), len(ids), f"no such run in {flow}")


def _fields(run: FlowState, stages: Iterable[str]) -> Iterator[tuple[str, object]]:
    first: dict[str, object] = {
        "id": plain(run.id),
        "state": run.state,
        "stage": run.stage,
        "started": clock(run.started_at),
        "ended": clock(run.ended_at),
        "reason": None if run.reason is None else plain(run.reason),
        "children": len(run.children) + len(run.failed) + run.pending or None,
        "not ended": run.pending or None,
        "failed": ", ".join(map(plain, run.failed[:20])),
    }
    yield from first.items()
    attributes = (
        (name, value if isinstance(value, str) else ", ".join(value))
        for name, value in run.attributes.items()
    )
    results = (
        (f"result of {stage}", start_of(run.results[stage]))
        for stage in stages
        if stage in run.results
    )
    yield from ((plain(name), plain(value)) for name, value in chain(attributes, results))


@group.command("cancel")
@on_server
def cancel_runs(
    client: redis.Redis, namespace: str, flow: FlowName, ids: SomeIds, in_json: Json = False
) -> None:
    """Cancel runs with all their children, wherever they are.

    Workers that hold their jobs find the leases lost.
    """
    with Discovery(client, namespace).flow(flow, _stages(client, flow, namespace)) as found:
        each(ids, found.cancel, "cancelled", in_json, f"no such run in {flow}, or it has ended")
