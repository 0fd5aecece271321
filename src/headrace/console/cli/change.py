"""Commands that change a queue or its jobs. A command that cannot be undone asks on a terminal, or
takes --yes."""

from __future__ import annotations

import getpass
import re
import socket
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

import attrs
import typer

from headrace import Limit, Queue
from headrace.console.cli.console import bytes_of, opened, reported, say
from headrace.console.cli.options import (
    Create,
    Ids,
    Json,
    Kind,
    Name,
    Namespace,
    Reason,
    SomeIds,
    Url,
    Yes,
    confirm,
    on_queue,
)
from headrace.console.cli.output import (
    all_of,
    changed,
    outcome,
    print_json,
    print_out,
    show,
    succeed,
)
from headrace.console.texts import signal_data
from headrace.errors import ConfigurationError, HeadraceError
from headrace.inspect import Repairs
from headrace.platform import HEADERS, LIMITS, InnerQueue, check_names

# -- jobs ------------------------------------------------------------------------------------------


def each(
    ids: Sequence[str], act: Callable[[str], bool], done: str, in_json: bool, why: str
) -> None:
    number = 0
    wanted = list(dict.fromkeys(ids))
    for name in wanted:
        was_changed = act(name)
        number += was_changed
        if in_json:
            print_json({"id": name, done: was_changed})
    if not in_json:
        print_out(f"{done} {number}")
    all_of(number, wanted, why)


class Cancelled(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DELAYED = "delayed"


def cancel(
    name: Name,
    ids: Ids = None,
    payload: Annotated[str | None, typer.Option(help="All jobs of this payload, instead.")] = None,
    state: Annotated[
        Cancelled | None,
        typer.Option(help="All in this state, instead; of a reason or kind, if given."),
    ] = None,
    reason: Reason = "",
    kind: Kind = "",
    yes: Yes = False,
    in_json: Json = False,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """Remove jobs, in any state but dead.

    By their ids, or by --payload; or, after a question, all in a --state that match. A worker that
    holds one finds its lease lost.
    """
    with reported():
        if [bool(ids), payload is not None, state is not None].count(True) != 1:
            raise ConfigurationError("give ids, --payload, or --state")
        if state is None and (reason or kind):
            raise ConfigurationError("--reason and --kind: give --state, too")
        with opened(name, url, namespace) as queue:
            if state is not None:
                confirm(f"Cancel all jobs of {name} that are {state} and match?", yes)
                all_matching(queue, "cancel", state.value, reason, kind, "cancelled", in_json)
                return
            if payload is None:
                each(
                    ids or (),
                    queue.cancel,
                    "cancelled",
                    in_json,
                    f"no such job in {name}, or it is dead",
                )
                return
            changed(name, "cancelled", queue.admin.cancel_payload(bytes_of(payload)), in_json)


def reschedule(
    name: Name,
    ids: SomeIds,
    delay: Annotated[
        float | None, typer.Option(min=0, help="Seconds from now; 0 is at once.")
    ] = None,
    at: Annotated[
        str | None, typer.Option(metavar="TIME", help="A moment: 2030-01-31T08:00:00+01:00.")
    ] = None,
    in_json: Json = False,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """Give delayed jobs another due time."""
    with reported():
        if (delay is None) == (at is None):
            raise ConfigurationError("give --delay or --at")
        due = delay if at is None else moment(at)
        with opened(name, url, namespace) as queue:
            each(
                ids,
                lambda one: queue.admin.reschedule(one, due),
                "rescheduled",
                in_json,
                f"no such job is delayed in {name}",
            )


def moment(text: str) -> datetime:
    try:
        value = datetime.fromisoformat(text)
    except ValueError:
        value = None
    if value is None or value.tzinfo is None:
        raise ConfigurationError(
            f"--at {text!r}: give a moment and its offset, such as 2030-01-31T08:00:00+01:00"
        )
    return value


@on_queue
def expire(queue: Queue, ids: Ids = None, yes: Yes = False, in_json: Json = False) -> None:
    """End leases now, all or some.

    Their jobs go to the front, the attempt spent.
    """
    if not ids:
        confirm(
            f"End all {queue.counts().leased} leases of {queue.name}, whose jobs will run again?",
            yes,
        )
    number = queue.admin.expire(*ids or ())
    changed(queue.name, "expired", number, in_json, ids, f"no such job is leased in {queue.name}")


def _user() -> str | None:
    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"[: LIMITS.name_characters]
    except (ImportError, KeyError, OSError):
        return None


@on_queue
def signal(
    queue: Queue,
    id: Annotated[str, typer.Argument(metavar="ID", show_default=False)],
    signal: Annotated[str, typer.Argument(metavar="NAME", show_default=False)],
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", show_default=False, help="JSON, or else text.")
    ] = None,
    in_json: Json = False,
) -> None:
    """Send a signal to a job that waits for it, or will.

    Prints woke, kept (it came before the wait), present (the job has one), or unknown (there is no
    such job). The last two exit with 1.
    """
    answer = queue.signal(id, signal, None if data is None else signal_data(data), by=_user())
    outcome(in_json, answer, {"queue": queue.name, "id": id, "signal": signal, "outcome": answer})
    succeed(answer in ("woke", "kept"))


def move(
    name: Name,
    to: Annotated[str, typer.Argument(metavar="TO", show_default=False)],
    ids: Ids = None,
    create: Create = False,
    in_json: Json = False,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """Move jobs that wait to another queue.

    All or some, delayed ones too, to its back; on a cluster to a queue of the same group. If some
    could not be moved, it says so and exits with 1.
    """
    with (
        reported(),
        opened(name, url, namespace) as queue,
        opened(to, url, namespace, create=create),
    ):
        number = queue.admin.move(to, *ids or ())
        outcome(in_json, f"moved {number}", {"queue": name, "to": to, "moved": number})
        all_of(number, ids, f"no such job waits, or its id is taken in {to}")


Value = Annotated[
    str | None,
    typer.Option(metavar="VALUE", help="Of this value alone, as `shares` names it: a tenant."),
]


# -- queues ----------------------------------------------------------------------------------------


def pause(
    name: Name,
    value: Value = None,
    create: Create = False,
    in_json: Json = False,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """Hand out no more jobs of a queue.

    Leased jobs go on.
    """
    with reported(), opened(name, url, namespace, create=create) as queue:
        done = queue.admin.pause(value=value)
        text = "paused" if done else "it was paused already"
        outcome(in_json, text, {"queue": name, "paused": True, "changed": done})
        succeed(done)


@on_queue
def resume(queue: Queue, value: Value = None, in_json: Json = False) -> None:
    """Hand out jobs again."""
    done = queue.admin.resume(value=value)
    text = "resumed" if done else "it was not paused"
    outcome(in_json, text, {"queue": queue.name, "paused": False, "changed": done})
    succeed(done)


@on_queue
def drain(
    queue: Queue,
    timeout: Annotated[
        float | None,
        typer.Option(min=0, show_default=False, help="Seconds to wait at most; else for ever."),
    ] = None,
    in_json: Json = False,
) -> None:
    """Wait until no job is left but dead letters.

    It exits with 1 if that takes longer than --timeout.
    """
    done = queue.admin.drain(timeout)
    counts = queue.counts()
    left = 0 if done else counts.present - counts.dead
    text = "drained" if done else f"{left} left"
    outcome(in_json, text, {"queue": queue.name, "drained": done, "left": left})
    succeed(done)


@on_queue
def purge(queue: Queue, value: Value = None, yes: Yes = False, in_json: Json = False) -> None:
    """Remove the jobs that wait or are delayed.

    Running jobs and dead letters stay.
    """
    counts = queue.counts()
    which = (
        f"{counts.waiting + counts.parked + counts.delayed} jobs"
        if value is None
        else f"jobs of {value!r}"
    )
    confirm(f"Remove all {which} that wait in {queue.name}?", yes)
    changed(queue.name, "purged", queue.admin.purge(value=value), in_json)


@on_queue
def delete(queue: Queue, yes: Yes = False, in_json: Json = False) -> None:
    """Remove a queue with everything in it.

    Jobs that wait or run, dead letters, schedules; only its counts go on.
    """
    confirm(f"Delete {queue.name} with all its {queue.counts().present} jobs?", yes)
    number = queue.admin.delete()
    outcome(
        in_json, f"deleted {queue.name}, {number} jobs", {"queue": queue.name, "deleted": number}
    )


@on_queue
def repair(
    queue: Queue,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the damage, and change nothing.")
    ] = False,
    yes: Yes = False,
    in_json: Json = False,
) -> None:
    """Repair damage by foreign commands.

    XDEL, XACK, XTRIM, XGROUP, … It counts each kind, and workers may go on meanwhile. On a terminal
    it shows the damage first and asks, unless --yes or --json is given.
    """
    asks = not (dry_run or yes or in_json) and sys.stdin.isatty()
    found = queue.admin.repair(dry_run=dry_run or asks)
    if in_json:
        print_json({"queue": queue.name, **attrs.asdict(found)})
        return
    if not found:
        say(f"nothing to mend in {queue.name}")
    _show_repairs("found" if dry_run or asks else "mended", found)
    if found and asks:
        sys.stdout.flush()
        confirm(f"Mend this in {queue.name}?", yes)
        _show_repairs("mended", queue.admin.repair())


def _show_repairs(word: str, repairs: Repairs) -> None:
    show(
        (word, "number"), [row for row in attrs.asdict(repairs).items() if row[1]], right=["number"]
    )


# -- workers ---------------------------------------------------------------------------------------


WorkerName = Annotated[
    str, typer.Argument(metavar="WORKER", help="As `workers` has it, or without its last part.")
]


def _ask_worker(queue: Queue, worker: str, verb: str, done: str, in_json: bool) -> None:
    check_names(worker=worker)
    if not getattr(queue.admin, verb)(worker):
        raise HeadraceError(f"there is no worker {worker} in {queue.name}")
    outcome(in_json, f"{done} {worker}", {"queue": queue.name, "worker": worker})


@on_queue
def quiet_worker(queue: Queue, worker: WorkerName, in_json: Json = False) -> None:
    """Let a worker lease no more jobs of a queue.

    It finishes the jobs that it runs, and leases again after `resume-worker`.
    """
    _ask_worker(queue, worker, "quiet_worker", "quieted", in_json)


@on_queue
def resume_worker(queue: Queue, worker: WorkerName, in_json: Json = False) -> None:
    """Let a quiet worker lease jobs again."""
    _ask_worker(queue, worker, "resume_worker", "resumed", in_json)


@on_queue
def stop_worker(queue: Queue, worker: WorkerName, yes: Yes = False, in_json: Json = False) -> None:
    """Stop the program of a worker, as SIGTERM does.

    It leases no more jobs, of any queue, and finishes the jobs that it runs. `headrace work` does
    not start it again.
    """
    confirm(f"Stop the program of {worker}?", yes)
    _ask_worker(queue, worker, "stop_worker", "asked to stop:", in_json)


@on_queue
def set_concurrency(
    queue: Queue,
    number: Annotated[
        int | None, typer.Argument(help="How many at once in each worker, 1-10000.")
    ] = None,
    reset: Annotated[
        bool, typer.Option("--reset", help="As many again as the code of each worker says.")
    ] = False,
    in_json: Json = False,
) -> None:
    """Set how many handlers each worker runs at once.

    Workers obey within seconds, and new ones too, until --reset. Running handlers go on.
    """
    if (number is None) is not reset:
        raise ConfigurationError("give a NUMBER, or --reset")
    queue.admin.set_concurrency(number)
    text = f"{number} at once" if number else "as many at once as the code says"
    outcome(in_json, f"{text} in {queue.name}", {"queue": queue.name, "concurrency": number})


@on_queue
def fail_worker(
    queue: Queue,
    worker: WorkerName,
    yes: Yes = False,
    in_json: Json = False,
) -> None:
    """Declare a worker dead.

    Now, instead of after its timeout. Its jobs go to the front, the attempts spent. If it lives, it
    comes back.
    """
    check_names(worker=worker)
    meant = [
        one for one in queue.admin.workers() if worker in (one.name, one.name.rpartition(".")[0])
    ]
    confirm(
        f"Declare {worker} dead in {queue.name}? Its {sum(one.leased for one in meant)} jobs will run again.",
        yes,
    )
    number = queue.admin.fail_worker(worker)
    if not meant and not number:
        raise HeadraceError(f"there is no worker {worker} in {queue.name}")
    outcome(
        in_json,
        f"failed {worker}, {number} jobs",
        {"queue": queue.name, "worker": worker, "jobs": number},
    )


@on_queue
def reshard(
    queue: Queue,
    shards: Annotated[
        int | None, typer.Argument(help="How many there are to be, 2-256; or go on, and show.")
    ] = None,
    in_json: Json = False,
) -> None:
    """Change the number of shards of a queue and its group.

    Work goes on meanwhile. Jobs go to the new shards at once; the old ones are worked off, and
    leave when they were empty for ten minutes.
    """
    found = queue.admin.reshard(shards)
    if in_json:
        print_json({**attrs.asdict(found), "done": found.done})
        return
    left = f"; {found.left} jobs are in {found.draining} older ones" if found.draining else ""
    print_out(f"{found.shards} shards{left}")


@on_queue
def redeclare(
    queue: Queue,
    fair: Annotated[
        str | None,
        typer.Option(metavar="HEADER", help="Whose values take turns: tenant, org/user."),
    ] = None,
    weight: Annotated[
        list[str] | None,
        typer.Option(
            metavar="VALUE=NUMBER",
            help="The weight of a value of --fair: gold=3, or acme/ada=2; repeatable.",
        ),
    ] = None,
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[HEADER=]NUMBER[,VALUE:NUMBER]",
            help="Leased jobs of the queue, or of each value of a header, at most; and of single values.",
        ),
    ] = None,
    per_shard: Annotated[
        bool, typer.Option("--per-shard", help="Divide the limits among the shards.")
    ] = False,
    none: Annotated[bool, typer.Option("--none", help="Take all terms off.")] = False,
    in_json: Json = False,
) -> None:
    """Change the shares and limits of a queue.

    The given terms replace all that it has, at once, whatever its workers declare. They count until
    all workers that live now have been replaced; `doctor` names workers that declare others. Rate
    limits stay.
    """
    if none == bool(fair or weight or limit):
        raise ConfigurationError("give --fair or --limit, or --none alone to take all terms off")
    limits = [_limit(text, per_shard) for text in limit or ()]
    queue.admin.redeclare(
        fair=fair, weights=dict(_weight(text, fair) for text in weight or ()) or None, limits=limits
    )
    declared = (
        {}
        if none
        else attrs.evolve(InnerQueue(queue).settings, fair=fair, limits=limits).declared()
    )
    given = {name: declared.get(name) for name in ("fair", "limits", *({"each"} & {*declared}))}
    text = ", ".join(f"{name} {value}" for name, value in given.items() if value) or "none"
    outcome(in_json, f"terms of {queue.name}: {text}", {"queue": queue.name, **given})


# A value may have any characters: it ends at the last colon before a number.
_LIMIT = re.compile(r"(?:(?P<key>.+?)=)?(?P<number>[0-9]+)(?P<each>(?:,.*?:[0-9]+)*)", re.DOTALL)
_EACH = re.compile(r",(.*?):([0-9]+)(?=,|$)", re.DOTALL)


def _limit(text: str, per_shard: bool) -> Limit:
    """Read a limit such as `20`, `tenant=5`, or `tenant=20,free:2`. Raises `ConfigurationError`
    for any other text.
    """
    found = _LIMIT.fullmatch(text)
    if found is None or re.search(r"=[0-9]+,", found["key"] or ""):  # such as tenant=20,free=2
        raise ConfigurationError(
            f"--limit {text!r}: give a number, or a header and a number, such as tenant=5; and with single values "
            "tenant=20,free:2"
        )
    values = _EACH.findall(found["each"])
    each = {value: int(number) for value, number in values}
    if len(each) < len(values) or (each and not found["key"]):
        raise ConfigurationError(
            f"--limit {text!r}: give a header and each of its values once, as in tenant=20,free:2"
        )
    return Limit(
        int(found["number"]), found["key"], per_shard and found["key"] != HEADERS.key, each
    )


def _weight(text: str, fair: str | None) -> tuple[tuple[str, ...], float]:
    """Read a weight such as `gold=3`, or `acme/ada=0.5` if *fair* has two headers. Raises
    `ConfigurationError`.
    """
    value, equals, number = text.rpartition("=")
    try:
        weight = float(number if equals else "")
    except ValueError:
        raise ConfigurationError(
            f"--weight {text!r}: give a value of --fair and a number, such as gold=3"
        ) from None
    return (tuple(value.split("/", 1)) if fair and "/" in fair else (value,)), weight


def is_bulk(ids: object, *filters: str) -> bool:
    """Tell whether the options select all matching jobs. Raises `ConfigurationError` if ids are
    given, too."""
    if any(filters) and ids:
        raise ConfigurationError("give ids, or what they are to match")
    return any(filters)


def all_matching(
    queue: Queue[Any], action: str, state: str, reason: str, kind: str, word: str, in_json: bool
) -> None:
    """Take an action for all matching jobs, and print their number. If interrupted, a second call
    goes on."""
    cursor = ""
    looked = 0
    done = 0
    while True:
        step = queue.admin.bulk(action, state, reason=reason, kind=kind, cursor=cursor)
        looked += step.looked
        done += step.done
        cursor = step.cursor
        if not cursor:
            break
        if sys.stderr.isatty():
            say(f"{word} {done} of {looked}")
    changed(queue.name, word, done, in_json)
