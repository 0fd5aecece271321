"""The demonstration of `headrace web --demo` and `headrace top --demo`, a shop's queues with a bit
of all there is.
"""

from __future__ import annotations

import itertools
import json
import random
import tempfile
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import redis

from headrace import Flow, FlowJob, Job, Limit, NewJob, Queue, Retry, Worker
from headrace.errors import HeadraceError

TENANTS = ("ada", "grace", "edsger", "barbara", "tony")
AT_MOST = 300  # jobs that wait in a queue
CHANCE = random.Random()
KEPT: dict[str, Any] = {"history": 1000, "tracebacks": True, "trends": True}


@contextmanager
def running() -> Generator[str, None, None]:
    with ExitStack() as stack:
        url = f"embedded:{stack.enter_context(tempfile.TemporaryDirectory(prefix='headrace-web-'))}/server"
        fair: dict[str, Any] = {
            "fair": "tenant",
            "limits": [Limit(3, key="tenant")],
            "weights": {"ada": 2.0},
        }
        emails = Queue("emails", url=url, **fair, **KEPT)
        others = [
            Queue(name, url=url) for name in ("payments", "reports", "agents", "archive", "exports")
        ]
        queues = {queue.name: stack.enter_context(queue) for queue in (emails, *others)}
        queues["archive"].enqueue(b"{}")  # the server is there
        flow = Flow("shop", url=url)
        over = threading.Event()
        stack.callback(flow.close)
        mailer, clerk = Worker(url=url, name="mailer"), Worker(url=url, name="clerk")
        _declare(mailer, clerk, queues, flow)
        producer = threading.Thread(target=_produce, args=(queues, flow, over), daemon=True)
        stack.enter_context(mailer)
        stack.enter_context(clerk)
        producer.start()
        stack.callback(producer.join, 5.0)
        stack.callback(over.set)
        yield url


def _mail(job: Job[Any]) -> None:
    time.sleep(CHANCE.uniform(0.01, 0.15))
    if CHANCE.random() < 0.04:
        raise TimeoutError(f"no answer from the mail server within {CHANCE.uniform(1, 5):.1f} s")
    if CHANCE.random() < 0.01:
        raise LookupError(f"there is no user {job.headers.get('tenant')}")


def _pay(job: Job[Any]) -> bytes:
    time.sleep(CHANCE.uniform(0.05, 0.3))
    if job.headers.get("kind") == "invoice" and CHANCE.random() < 0.6:
        raise ValueError("the invoice has no address")
    if CHANCE.random() < 0.02:
        raise ConnectionError("the payment service refused the connection")
    return b'{"paid": true}'


def _report(job: Job[Any]) -> bytes:
    pages = CHANCE.randint(3, 9)
    for page in range(pages):
        job.progress(page / pages, f"page {page + 1} of {pages}")
        job.step(f"page-{page + 1}", _write)
    return json.dumps({"pages": pages}).encode()


def _write() -> int:
    time.sleep(CHANCE.uniform(0.2, 1.5))
    return CHANCE.randint(100, 999)


def _answer(job: Job[Any]) -> bytes:
    job.run_all([("agents/searches", place) for place in (b"orders", b"mails", b"payments")])
    job.step("draft the answer", _ask_model, job.id)
    job.sleep("let others see it", 2.0)
    return json.dumps(job.wait_for("approval", timeout=86400.0)).encode()


def _search(job: Job[Any]) -> bytes:
    time.sleep(CHANCE.uniform(0.5, 4.0))
    found: bytes = b"found in " + job.payload
    return found


def _ask_model(question: str) -> dict[str, Any]:
    time.sleep(CHANCE.uniform(0.3, 2.5))
    if CHANCE.random() < 0.35:
        raise TimeoutError("no answer from the model within 2 s")
    return {"asked": question, "tokens": CHANCE.randint(200, 2000)}


def _handle_stage(_job: FlowJob) -> bytes:
    time.sleep(CHANCE.uniform(0.1, 0.6))
    if CHANCE.random() < 0.02:
        raise RuntimeError("the label printer has no paper")
    return b"done"


def _declare(mailer: Worker, clerk: Worker, queues: Mapping[str, Queue], flow: Flow) -> None:
    for kind in ("welcome", "receipt", "newsletter"):
        mailer.handler(
            queues["emails"], kind=kind, retry=Retry(attempts=2, wait=1.0), grace=5, concurrency=4
        )(_mail)
    clerk.handler("payments", concurrency=4, retry=Retry(attempts=3, wait=2.0), **KEPT)(_pay)
    clerk.handler("reports", concurrency=3, **KEPT)(_report)
    clerk.handler(
        "agents", kind="refund", concurrency=4, retry=Retry(attempts=9, wait=1.0), **KEPT
    )(_answer)
    clerk.handler("agents/searches", concurrency=4, **KEPT)(_search)
    for stage, after in (("order", "pack"), ("pack", "ship"), ("ship", "bill"), ("bill", ())):
        flow.stage(stage, next=after, retry=Retry(attempts=1))(_handle_stage)
    clerk.flow(flow)


def _new_mail(number: int) -> NewJob[bytes]:
    tenant = CHANCE.choices(TENANTS, (8, 3, 2, 1, 1))[0]
    kind = (
        "survey"
        if number % 400 == 399
        else CHANCE.choice(("welcome", "receipt", "receipt", "newsletter"))
    )
    payload = json.dumps({"to": f"{tenant}@example.org", "order": number}).encode()
    return NewJob(payload, headers={"tenant": tenant, "kind": kind})


def _approve_or_ask(agents: Queue, number: int) -> None:
    # five runs wait, and the oldest is approved when another comes
    waiting = [state.job.id for state in agents.admin.blocked()]
    if len(waiting) > 5:
        agents.signal(waiting[0], "approval", {"by": "grace"}, by="grace")
    agents.enqueue(b'{"euros": 42}', id=f"refund-{number}", headers={"kind": "refund"})


def _produce(queues: Mapping[str, Queue], flow: Flow, over: threading.Event) -> None:
    with suppress(redis.RedisError, HeadraceError, OSError):
        queues["reports"].admin.schedule(
            "nightly", b'{"report": "sales"}', cron="0 3 * * *", timezone="Europe/Berlin"
        )
        queues["reports"].admin.schedule("hourly", b'{"report": "orders"}', every=30)
        queues["archive"].admin.pause()
        queues["exports"].enqueue_many(
            [NewJob(b'{"table": "orders"}', id=f"export-{n}") for n in range(3)]
        )
        for number in itertools.count(1):
            if over.wait(0.05):  # between two rounds of the producer
                return
            if queues["emails"].counts().waiting < AT_MOST:
                queues["emails"].enqueue_many(
                    [_new_mail(number) for _ in range(CHANCE.randint(0, 3))]
                )
            if number % 4 == 0 and queues["payments"].counts().waiting < AT_MOST:
                payload = json.dumps({"cents": CHANCE.randint(100, 90_000)}).encode()
                queues["payments"].enqueue(
                    payload,
                    id=f"payment-{number}",
                    headers={"kind": "card" if number % 48 else "invoice"},
                )
            if number % 160 == 1:
                _approve_or_ask(queues["agents"], number)
            if number % 40 == 0 and queues["reports"].counts().waiting < AT_MOST:
                queues["reports"].enqueue(
                    json.dumps({"month": number % 12 + 1}).encode(), id=f"report-{number}"
                )
            if number % 30 == 0:
                headers = {"kind": "receipt", "tenant": "tony"}
                queues["emails"].enqueue(
                    b'{"to": "tony@example.org"}', delay=CHANCE.uniform(20, 90), headers=headers
                )
                flow.start(
                    b'{"items": 3}',
                    id=f"order-{number}",
                    attributes={"customer": CHANCE.choice(TENANTS)},
                )
            if number % 100 == 0 and queues["archive"].counts().waiting < AT_MOST:
                queues["archive"].enqueue(f"archived {number}".encode())
