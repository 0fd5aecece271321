"""Recorded runs meet changed code. A replay says which of them would not go on."""

from __future__ import annotations

import asyncio
import inspect
import json
import random
from collections import Counter
from contextlib import ExitStack
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace import AsyncWorker, DeadLetter, Flow, Job, NewJob, Queue, RetryLater, Tasks, Worker
from headrace.codecs import Encrypted, JSONCodec
from headrace.errors import ChildFailed, ConfigurationError, RunSuspended
from headrace.testing import Replayed, recorded, replay, travel
from tests.steps.changes import KINDS, Expected, expected, made
from tests.support.awaiting import PATIENCE
from tests.support.facts import each
from tests.support.servers import Server

PROGRAMS = 30
DAY = 86_400  # seconds
NOWHERE = "redis://localhost:1"


def parked(queue: Queue[Any], url: str, handler: Any, number: int) -> str:
    """Run a new job until its sleep, wait or child of this number, and return its recording."""
    receipt = queue.enqueue(1)
    for passed in range(number + 1):
        if passed:
            at = queue.find(receipt.id).steps[-1]  # type: ignore[union-attr]
            if at.state == "waiting":
                assert queue.signal(receipt.id, at.name, {"ok": True}) == "woke"
            elif at.state == "running":
                with Queue(at.queue, url=url, codec=JSONCodec()) as children:
                    assert children.complete(children.lease(), 7)
            travel(url, 2 * DAY)
        lease = queue.lease(block=PATIENCE)
        assert lease is not None
        assert lease.job.id == receipt.id
        with pytest.raises(RunSuspended):
            handler(lease.job)
    (line,) = recorded(queue)
    assert queue.cancel(receipt.id)
    return line


def standing(line: str) -> str:
    return str(json.loads(line)["records"][-1]["name"])


@pytest.mark.slow
@pytest.mark.parametrize("colour", ["sync", "async"])
def test_changes_of_code(newest: Server, tmp_path: Path, colour: str) -> None:
    """Misfits are found, and nothing else is called one."""
    dice = random.Random(7)
    seen = Counter[str]()
    wrong = list[str]()
    with Queue("q", url=newest.url, codec=JSONCodec()) as queue:
        for number in range(PROGRAMS):
            before = made(dice)
            module = before.load(tmp_path, f"before_{colour}_{number}", "sync")
            handler = module.worker.handlers["q"].function
            lines = [parked(queue, newest.url, handler, at) for at in range(2)]
            for turn, kind in enumerate(KINDS * 2):
                after = before.changed(kind, dice.randrange(len(before.parts)), dice)
                name = f"after_{colour}_{number}_{turn}"
                changed = after.load(tmp_path, name, colour)
                for line in lines:
                    found = replay(changed.worker, line, removed=after.removed)
                    wanted = expected(after, before, standing(line))
                    judge(seen, wrong, found, wanted, f"{kind}: {after.source(colour)}")
    planted = seen["planted"]
    counts = f"{planted} planted, {seen['found']} found, {seen['false']} false of {seen['all']}"
    assert planted > 100, counts
    assert seen["found"] >= 0.95 * planted, counts
    assert not seen["false"], counts
    assert not wrong, f"{counts}; {len(wrong)} at another place: {wrong[0]}"


def judge(
    seen: Counter[str], wrong: list[str], found: Replayed, wanted: Expected, what: str
) -> None:
    planted = wanted.end == "misfit"
    seen["all"] += 1
    seen["planted"] += planted
    seen["found"] += planted and not found.fits
    seen["false"] += not planted and not found.fits
    if found.fits and not planted and (found.end, found.at) != (wanted.end, wanted.at):
        wrong.append(f"{found} and not {wanted}, {what}")


LINE = {
    "format": 1,
    "queue": "q",
    "id": "i",
    "state": "blocked",
    "at": 1000.0,
    "attempt": 1,
    "enqueued_at": 900.0,
    "headers": {},
    "payload": "x",
    "records": [],
}


def row(name: str, kind: str = "step", *, ended: float = 950.0, **more: Any) -> dict[str, Any]:
    base = {"name": name, "kind": kind, "began": 949.0, "ended": ended, "due": 0, "attempt": 1}
    return base | more


def line(*rows: dict[str, Any], **more: Any) -> str:
    return json.dumps(LINE | {"records": list(rows)} | more)


def paid() -> int:
    raise AssertionError("a replay calls no function of a step")


def of_handler(function: Any, *rows: dict[str, Any], **more: Any) -> Replayed:
    """Replay a run of these records by one handler, which may be async."""
    worker: Any = (AsyncWorker if inspect.iscoroutinefunction(function) else Worker)(NOWHERE)
    worker.handler("q")(function)
    return replay(worker, line(*rows, **more))


def test_the_values_of_records_are_the_handlers() -> None:
    got = list[object]()

    def handler(job: Job) -> None:
        got.append(job.step("pay", paid))
        got.append(job.wait_for("go"))
        job.sleep("nap", timedelta(days=1))
        job.progress(0.5, "half")
        job.step("ship", paid)

    found = of_handler(
        handler,
        row("pay", value="j7"),
        row("go", "wait", value='j{"by": "ada"}'),
        row("nap", "sleep", ended=0, due=999.0),
    )
    assert (found.end, found.at, found.unused) == ("new", "ship", ())
    assert got == [7, {"by": "ada"}]


def test_steps_side_by_side() -> None:
    async def handler(job: Job) -> None:
        await asyncio.gather(*(job.step(name, paid) for name in "ab"), job.wait_for("go"))

    waits = row("go", "wait", ended=0)
    found = of_handler(handler, row("a", value="j1"), row("b", value="j1"), waits)
    assert (found.end, found.at) == ("suspended", "go")
    found = of_handler(handler, row("a", value="j1"), waits)
    assert (found.end, found.at) == ("new", "b")
    found = of_handler(handler, row("a", value="j1"), row("b", "sleep"), waits)
    assert (found.end, found.fits) == ("misfit", False)


@each(
    ("rows", "end", "reason"),
    [
        ([row("go", "wait", ended=0, due=999.0)], "ended", "no signal"),
        ([row("go", "wait", value="j1"), row("pay", "once", ended=0)], "ended", "InDoubt"),
        ([row("go", "wait", value="j1"), row("pay", value="j1")], "ended", "DeadLetter: enough"),
        ([row("go", "wait", value="j1"), row("pay", value="j0")], "misfit", "ZeroDivisionError"),
        ([row("go", "wait", value="j1"), row("pay", value="jx")], "misfit", "does not decode"),
        ([row("go")], "misfit", "was recorded as a step"),
        ([row("go", "wait", value="j1"), row("paid", value="j1")], "misfit", "'paid'"),
    ],
)
def test_ends(rows: list[dict[str, Any]], end: str, reason: str) -> None:
    def handler(job: Job) -> None:
        try:
            job.wait_for("go", 50)
        except ConfigurationError as error:
            raise RuntimeError("wrapped") from error
        1 // job.step("pay", paid)
        raise DeadLetter("enough")

    found = of_handler(handler, *rows)
    assert found.end == end, found
    assert reason in found.reason


def test_a_handler_that_goes_on_after_a_misfit() -> None:
    def handler(job: Job) -> None:
        try:
            job.step("pay", paid)
        except ConfigurationError:
            job.step("pay-v2", paid)

    assert of_handler(handler, row("pay", "sleep")).at == "pay-v2"
    assert of_handler(handler, row("pay", "sleep"), row("pay-v2", value="j1")).end == "completed"


def test_a_verdict_that_is_returned() -> None:
    assert of_handler(lambda _: RetryLater(5)).end == "ended"

    async def handler(_: Job) -> object:
        return RetryLater

    assert of_handler(handler).end == "ended"


def test_a_plain_function_that_returns_an_awaitable() -> None:
    async def later(job: Job) -> None:
        await job.step("pay", paid)

    def handler(job: Job) -> Any:
        return later(job)

    worker = AsyncWorker(NOWHERE)
    worker.handler("q")(handler)
    assert replay(worker, line(row("pay", value="j1"))).end == "completed"
    assert replay(worker, line()).at == "pay"


def test_a_step_that_was_not_awaited() -> None:
    async def handler(job: Job) -> None:
        job.step("pay", paid)

    found = of_handler(handler, row("pay", value="j1"))
    assert not found.fits
    assert "never awaited" in found.reason


def test_on_a_running_loop() -> None:
    async def handler(job: Job) -> None:
        await job.step("pay", paid)

    async def main() -> Replayed:
        return of_handler(handler, row("pay", value="j1"))

    assert asyncio.run(main()).end == "completed"


def test_names_in_a_loop_and_in_helpers() -> None:
    """A name is gone only if no code makes it, as far as that can be told."""

    def pages(job: Job) -> None:
        for number in range(3):
            job.step(f"page-{number}", paid)
        job.step("done", paid)

    kept = [row("page-0", value="j1"), row("page-2", value="j1")]
    assert of_handler(pages, *kept).at == "page-1"
    assert not of_handler(pages, *kept, row("sheet-1", value="j1")).fits

    def named(job: Job) -> None:
        for name in job.headers:
            job.step(name, paid)
        job.step("done", paid)

    assert of_handler(named, row("sheet-1", value="j1")).at == "done"


def test_kinds_and_handlers_that_take_no_steps() -> None:
    worker = Worker(NOWHERE)
    worker.handler("q", kind="a")(lambda job: job.step("pay", paid))
    worker.batch_handler("b")(lambda _: None)
    pay = row("pay", value="j1")
    assert replay(worker, line(pay, headers={"kind": "a"})).end == "completed"
    assert "kind 'z'" in replay(worker, line(pay, headers={"kind": "z"})).reason
    assert "no handler for queue 'other'" in replay(worker, line(pay, queue="other")).reason
    assert "batches" in replay(worker, line(pay, queue="b")).reason
    flow: Any = Flow("shop", NOWHERE)
    flow.stage("pick")(lambda _: None)
    worker.flow(flow)
    with pytest.raises(ConfigurationError, match="stage of a flow"):
        replay(worker, line(pay, queue="shop/pick"))


def test_a_task() -> None:
    tasks = Tasks("q", NOWHERE)

    @tasks.task(name="pay")
    def pay(cents: int) -> int:
        return int(tasks.job.step("charge", paid)) + cents

    worker = Worker(NOWHERE)
    worker.tasks(tasks)
    kind = {"kind": "pay"}
    charge = row("charge", value="j1")
    call = pay.new(5).payload.decode()
    assert replay(worker, line(charge, headers=kind, payload=call)).end == "completed"
    assert replay(worker, line(headers=kind, payload=call)).at == "charge"
    wrong = replay(worker, line(charge, headers=kind, payload=call.replace("5", '"x"')))
    assert not wrong.fits
    assert "does not take these arguments" in wrong.reason


def test_an_encrypted_run_needs_the_codec(newest: Server) -> None:
    codec = Encrypted(JSONCodec(), {"k": bytes(32)})
    worker = Worker(newest.url)

    @worker.handler("q", codec=codec)
    def handler(job: Job) -> None:
        job.step("pay", int)
        job.wait_for("go")

    with Queue("q", url=newest.url, codec=codec) as queue:
        queue.enqueue(5, id="i")
        lease = queue.lease()
        assert lease is not None
        with pytest.raises(RunSuspended):
            handler(lease.job)
        (kept,) = recorded(queue)
    assert replay(worker, kept).at == "go"
    other = Worker(newest.url)
    other.handler("q", codec=JSONCodec())(handler)
    assert "payload does not decode" in replay(other, kept).reason


@each(
    ("bad", "why"),
    [
        ("{", "not JSON"),
        ("[]", '"format": 1'),
        (line(format=2), '"format": 1'),
        (line(queue=5), '"queue" must be of type str, not int'),
        (line(at=True), '"at" must be of type int or float, not bool'),
        (line(headers={"a": 1}), '"headers" has a value that is no text'),
        (line(payload_base64="!", payload=None), '"payload_base64"'),
        (line({"name": "a"}), 'record 1: "kind" must be of type str, not NoneType'),
        (json.dumps(LINE | {"records": [5]}), 'record 1: "name"'),
    ],
)
def test_lines_that_are_wrong(bad: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why.replace("(", r"\(")):
        replay(Worker(NOWHERE), bad)


def test_bytes_that_are_no_text() -> None:
    def handler(job: Job) -> None:
        assert job.payload == b"\xff"
        assert job.step("pay", paid) == b"\xfe"

    pay = row("pay", value_base64="Yv4=")
    found = of_handler(handler, pay, payload=None, payload_base64="/w==")
    assert found.end == "completed", found


def test_a_replay_calls_no_undo(newest: Server) -> None:
    """It passes a recorded `job.undo()`, and stops at a new one."""
    undone: list[str] = []

    def undoes(job: Job[Any]) -> None:
        job.step("flight", str, "flight", undo=undone.append)
        job.undo()
        job.sleep("nap", DAY)

    def sleeps(job: Job[Any]) -> None:
        job.step("flight", str, "flight", undo=undone.append)
        job.sleep("nap", DAY)

    worker = Worker(url=NOWHERE)
    worker.handler("q", codec=JSONCodec())(undoes)
    with Queue("q", url=newest.url, codec=JSONCodec()) as queue:
        old, new = (parked(queue, newest.url, one, 0) for one in (undoes, sleeps))
    assert undone == ["flight"]
    ends = [(found.end, found.at) for found in (replay(worker, old), replay(worker, new))]
    assert ends == [("suspended", "nap"), ("new", "job.undo()")]
    assert undone == ["flight"]


TASKS = Tasks("q/pack")


@TASKS.task(name="pack")
def pack(cents: int) -> int:
    return cents


@TASKS.task(name="wrap")
def wrap(cents: int) -> int:
    return cents


def child(name: str, outcome: str = "", **more: Any) -> dict[str, Any]:
    ended = 950.0 if outcome else 0
    found = row(name, "child", ended=ended, child=f"i/{name}", queue="q/pack", outcome=outcome)
    return found | more


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_replay_starts_no_child(newest: Server, colour: str) -> None:
    """Children that have ended answer, with their failures. One that runs is waited for."""

    def parent(job: Job[Any]) -> None:
        job.run(pack, 7)
        job.start(("q/audit", 7))
        job.run_all([(pack, n) for n in range(3)], at_most=2)

    async def parent_async(job: Job[Any]) -> None:
        await job.run(pack, 7)
        await job.start(("q/audit", 7))
        await job.run_all([(pack, n) for n in range(3)], at_most=2)

    worker: Any = (Worker if colour == "sync" else AsyncWorker)(url=NOWHERE)
    worker.handler("q", codec=JSONCodec())(parent if colour == "sync" else parent_async)
    names = ("q", "q/pack", "q/audit")
    with ExitStack() as stack:
        queue, packs, audits = (
            stack.enter_context(Queue(name, url=newest.url, codec=JSONCodec())) for name in names
        )
        lines = [parked(queue, newest.url, parent, at) for at in range(2)]
        before = (packs.counts(), audits.counts())
        ends = [(found.end, found.at) for found in (replay(worker, one) for one in lines)]
        assert ends == [("suspended", "pack"), ("suspended", "pack-2")]
        assert (packs.counts(), audits.counts()) == before


def runs_all(job: Job) -> None:
    try:
        job.run_all([(pack, n) for n in range(3)], at_most=2)
    except ChildFailed as failure:
        job.step(f"because {failure.reason}", paid)


def test_the_first_failure_of_recorded_children() -> None:
    """The replay cancels no other child, and the handler goes on."""
    found = of_handler(runs_all, child("pack", "dead", value="no shelf"), child("pack-2"))
    assert (found.end, found.at) == ("new", "because no shelf")
    assert (
        of_handler(runs_all, child("pack", "completed", value="1"), child("pack-2")).at == "pack-3"
    )


@pytest.mark.parametrize(
    ("call", "end", "reason"),
    [
        (lambda job: job.run(pack, 1), "suspended", ""),
        (lambda job: job.run(("q/other", b"x"), child="pack"), "suspended", ""),
        (lambda job: job.run(("q/other/pack", b"x")), "suspended", ""),
        (lambda job: job.first(late=job.timer(days=1), done=job.start(pack, 1)), "new", ""),
        (lambda job: job.run(wrap, 1), "misfit", "'pack': recorded, and no more in the code"),
        (lambda job: job.start(("q/wrap", b"x")), "misfit", "comes to 'wrap' without"),
        (lambda job: job.run_all([(wrap, 1), (wrap, 2)]), "misfit", "comes to 'wrap' without"),
        (lambda job: job.run(wrap, 1, child="new"), "misfit", "comes to 'new' without"),
        (lambda job: job.run(wrap, 1) or job.run(pack, 1), "new", ""),
        (lambda job: job.run(wrap, 1) or job.run_all([wrap, (pack, 1)]), "new", ""),
        (lambda job: job.run(wrap, 1) or job.run_all([(pack, n) for n in "ab"]), "new", ""),
        (lambda job: job.run(wrap, 1) or job.run(NewJob(b"", queue="q/pack")), "new", ""),
        (lambda job: job.step("pack", paid), "misfit", "recorded as a child, and is a step now"),
        (lambda job: job.wait_for("pack"), "misfit", "recorded as a child, and is a wait now"),
    ],
)
def test_a_child_that_runs_meets_changed_code(call: Any, end: str, reason: str) -> None:
    """A child is known by its name. Its name is the task's, or the last part of its queue's."""
    found = of_handler(call, child("pack"))
    assert (found.end, found.fits) == (end, end != "misfit"), found
    assert reason in found.reason


def test_a_poll_reads_its_records_once() -> None:
    """Its choice has no record yet, and there is no server."""

    def handler(job: Job) -> None:
        packed = job.start(pack, 1)
        chosen = job.first(done=packed, now=job.timer(seconds=0))
        job.step(f"because {chosen.name}", paid)

    now = row("now", "sleep", ended=0, due=900.0)
    ended = child("pack", "completed", value="1")
    assert of_handler(handler, child("pack"), now).at == "because now"
    assert of_handler(handler, ended, now).at == "because done"


def test_a_step_in_front_of_a_first() -> None:
    """The records of its signals, its timers and its choice are still in the code."""

    def handler(job: Job) -> None:
        job.step("audit", paid)
        job.first(ok=job.signal_of("approved"), late=job.timer(days=1))

    approved = row("approved", "wait", value="j1")
    late = row("late", "sleep", ended=0, due=2000.0)
    chosen = row("first", value='j"ok"')
    found = of_handler(handler, approved, late, chosen)
    assert (found.end, found.at) == ("new", "audit"), found
    audit = row("audit", value="j1")
    assert of_handler(handler, audit, approved, late).end == "completed"
    lost = of_handler(handler, row("granted", "wait", value="j1"), late, chosen)
    assert "'granted': recorded, and no more" in lost.reason
