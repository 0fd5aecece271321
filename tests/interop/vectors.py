"""Conformance vectors. The package and a real server make these data, on which every client must
agree.

    python -m tests.interop.vectors [--check]

writes tests/interop/vectors.json, or tells whether it is fresh. Its members:

- `names`: what is a valid name of each kind, and what is not.
- `keys`: the keys of some queues.
- `operations`: calls, each as the KEYS and ARGV that are sent (lane `l`, call 1).
- `receipts`, `leases`: replies of `enqueue` and `lease`, and what they mean.
- `stories`: steps on an empty server. A step is a script call or a plain command with its reply, a
  pause of so many ms (`sleep`), or the blocking wait (`wait`, of so many ms).

Bytes are strings, or `{"hex": …}` where they are not UTF-8. In stories `<e1>` stands for the same
entry ID wherever it is, `<e1.ms>` for its first part, `<ms>` for any number that is not negative,
and `{"error": "X"}` for an error with that word in it.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import redis

from headrace import NewJob
from headrace._model.checks import headers
from headrace._model.codec import BytesCodec
from headrace._model.job import Claim, Job
from headrace._model.receipt import Receipt
from headrace._protocol import admin_ops, replies
from headrace._protocol.export import protocol
from headrace._protocol.jobs import Jobs
from headrace._protocol.keys import Keys, job_id, worker_name
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import FOLLOWED, Ops
from headrace._protocol.script import script
from tests.support.servers import Server, binaries

FILE = Path(__file__).parent / "vectors.json"
SCRIPTS = protocol()["scripts"]
KEYS = Keys.of("shop/orders")
ENTRY = re.compile(r"\d{13}-\d+")

# -- what is pure ----------------------------------------------------------------------------------

NAMES: dict[str, tuple[Callable[[str], object], list[str], list[str]]] = {
    "queue": (
        Keys.of,
        ["q", "a.b_c-D9", "shop/orders", "0", "x" * 200, "." * 3, "a/" + "b" * 198],
        [
            "",
            "a/b/c",
            "/a",
            "a/",
            "a b",
            "ä",
            "a:b",
            "{a}",
            "a\n",
            "x" * 201,
            "a/" + "b" * 199,
            "a*",
        ],
    ),
    "namespace": (
        lambda name: Keys.of("q", name),
        ["headrace", "a.b_c-D9", "x" * 100],
        ["", "a/b", "a:b", "{a}", "a b", "ä", "a\n", "x" * 101],
    ),
    "worker": (
        worker_name,
        ["w", "node.7f3a", "a_b-C.9", "x" * 200],
        ["", "parked", "idle", "a/b", "a:b", "a b", "ä", "a\n", "x" * 201],
    ),
    "id": (
        job_id,
        ["1", "a b", "å/β:{*}", "<>", "x" * 500, "é" * 250, "😀" * 125, "5-1", "\u00a0", "\u2028"],
        ["", "a\n", "\x00", "\x1f", "\x7f", "\x85", "\x9f", "x" * 501, "é" * 251, "😀" * 125 + "x"],
    ),
    "header": (
        lambda name: headers({name: ""}),
        ["traceparent", "Data", "x y", "\n"],
        ["", "data", "id", "attempt", "enq"],
    ),
}


def keys(queue: str, namespace: str) -> dict[str, str]:
    """Return the keys of a queue by part."""
    made = Keys.of(queue, namespace)
    parts = {part: made.key(part) for part in ("jobs", "wake", "dead")}
    return {
        "namespace": namespace,
        "queue": queue,
        **parts,
        "lane": made.lane("1f"),
        "result": made.result("an id"),
    }


def claim(entry: str, count: int = 1, id: str | None = None) -> Claim:
    return Claim(Job(id or entry, b"", KEYS.queue), "w", entry, count, count, named=id is not None)


def operations() -> Iterator[dict[str, Any]]:
    """Return operations with their arguments and the commands that they send."""
    ops = Ops(KEYS)
    plain, named = claim("5-1"), claim("7-0", 3, "a")
    like_its_entry = claim("8-0", 1, "8-0")

    def made(op: Op[Any], what: str, jobs: Sequence[Claim] = (), **options: Any) -> dict[str, Any]:
        words = op.wire("EVAL", "l", "1")
        count = int(words[2])
        bare = [
            {
                "id": c.job.id,
                "named": c.named,
                "entry": c.entry,
                "count": c.count,
                "worker": c.worker,
            }
            for c in jobs
        ]
        sent = {
            "keys": list(words[3 : 3 + count]),
            "argv": [as_json(word) for word in words[3 + count :]],
        }
        return {"operation": what, **({"jobs": bare} if jobs else {}), **options, **sent}

    def enqueue(*jobs: Any) -> dict[str, Any]:
        shown: list[dict[str, Any]] = []
        items: list[Any] = []
        for job in jobs:
            shown.append({name: as_json(value) for name, value in job.items()})
            delay = job.get("delay")
            at = delay.get("at") if isinstance(delay, dict) else None
            after = delay / 1000 if isinstance(delay, (int, float)) else None
            when = datetime.fromtimestamp(at / 1000, UTC) if at is not None else after
            items.append(ops.item(NewJob(job["payload"], job.get("id"), job.get("headers"), when)))
        return made(ops.enqueue(items), "enqueue", new=shown)

    yield enqueue({"payload": b"a"}, {"payload": b"\x00\xff"}, {"payload": b""})
    yield enqueue({"payload": b"a", "id": "å"}, {"payload": b"b"})
    yield enqueue({"payload": b"a", "headers": {"traceparent": "00-1-2-01", "x": ""}})
    for delay in (
        0,
        0.4,
        1,
        1500,
        1500.5,
        {"at": 0},
        {"at": 1767225600000},
        {"at": 1767225600000.5},
    ):
        yield enqueue({"payload": b"a", "id": "a", "delay": delay, "headers": {"x": "y"}})
    yield made(ops.lease("w", 10), "lease", worker="w", limit=10)
    options: dict[str, Any] = {"duration": 1500, "ttl": 70_000, "woken": True}
    yield made(
        ops.lease("w", 1, duration=1.5, ttl=70, woken=True), "lease", worker="w", limit=1, **options
    )
    for fenced in (False, True):
        for jobs in ([plain], [named], [plain, named], [like_its_entry]):
            yield made(ops.complete(jobs, fenced=fenced), "complete", jobs, fenced=fenced)
    yield made(ops.release([plain, named]), "release", [plain, named])
    yield made(ops.retry([(plain, None, True, "no")]), "retry", [plain], reason="no")
    later = made(ops.retry([(named, 1.5, False, "")]), "retry", [named], delay=1500, spend=False)
    yield later
    yield made(
        ops.dead_letter([(plain, "bad"), (named, "bad")]),
        "dead_letter",
        [plain, named],
        reason="bad",
    )
    yield made(ops.renew([plain, named]), "renew", [plain, named])
    yield made(ops.renew([plain], duration=2, ttl=70), "renew", [plain], duration=2000, ttl=70_000)
    yield made(ops.beat("w", 10, register=True), "beat", worker="w", timeout=10_000, register=True)
    yield made(ops.beat("w", 10), "beat", worker="w", timeout=10_000, register=False)
    yield made(ops.reclaim("w", 10), "reclaim", worker="w", timeout=10_000)
    yield made(ops.leave("w"), "leave", worker="w")
    yield made(admin_ops.cancel(ops, "a"), "cancel", id="a")


RECEIPTS: list[tuple[str, list[Any]]] = [
    ("plain", [b"1700000000000-0", 1]),
    ("plain", [b"1700000000000-9", 3]),
    ("plain", [b"1700000000000-1", b"1700000000001-0"]),
    ("plain", [b"1700000000000-1", b"1700000000001-0", b"1700000000001-1"]),
    ("full", ["å".encode(), 1, b"a", 0, b"1700000000000-0", 1]),
]


def receipts(form: str, reply: list[Any]) -> list[dict[str, Any]]:
    """Return the meaning of a reply of `enqueue`."""
    found: list[Receipt] = (replies.plain_receipts if form == "plain" else replies.receipts)(reply)
    return [{"id": receipt.id, "added": receipt.added} for receipt in found]


E = b"1700000000000-5"
LEASES: list[list[Any]] = [
    [0, -1, [], [], 0, 1700000000000],
    [1, 250, [], [E, b"a", b"1700000000000-6", b"\x00\xff"], 0, 1700000000000],
    [
        1,
        -1,
        [[E, [b"data", b"a", b"id", b"x", b"attempt", b"2", b"enq", b"1600000000000"], 3, 1]],
        [],
        0,
        0,
    ],
    [
        1,
        -1,
        [[E, [b"traceparent", b"00", b"data", b"a", b"tenant", "å".encode()], 1, 0]],
        [b"1-1", b"b"],
        1,
        0,
    ],
    [1, -1, [[E, [b"data", b"a", b"attempt", b"many", b"enq", b"then"], 2, 2]], [], 0, 0],
    [1, -1, [[E, [b"data", b"a", b"data", b"b", b"id", b"x", b"id", b"y"], 1, 0]], [], 0, 0],
    [1, -1, [[E, [b"payload", b"a"], 1, 0]], [], 0, 0],
    [1, -1, [[E, [b"data", b"a", b"id", E], 1, 0]], [], 0, 0],
]


def leased(reply: list[Any]) -> list[dict[str, Any]] | None:
    """Return the jobs in a reply of `lease`, or `None` if the worker was declared dead."""
    grant = Jobs(KEYS.queue, BytesCodec()).grant(reply, "w", None)
    if grant is None:
        return None
    found = [*grant.claims, *(held for held, _ in grant.undecodable)]
    wrong = {held.entry for held, _ in grant.undecodable}
    return [
        {
            "id": held.job.id,
            "named": held.named,
            "payload": as_json(held.job.payload),
            "headers": dict(held.job.headers),
            "attempt": held.job.attempt,
            "token": held.token,
            "enqueuedAt": round(held.job.enqueued_at * 1000),
            "entry": held.entry,
            "count": held.count,
            "readable": held.entry not in wrong,
        }
        for held in found
    ]


# -- stories ---------------------------------------------------------------------------------------

Step = dict[str, Any]
LEASE = {
    "limit": 10,
    "duration": "",
    "lease": 60_000,
    "ttl": 70_000,
    "max_attempts": 0,
    "dead_limit": 1000,
    "woken": 0,
    "heir_of": "",
    "apart": 1,
}
LATER = 3_600_000


def call(
    name: str, *items: Any, lane: str = "-", call: Any = "", more: Sequence[str] = (), **args: Any
) -> Step:
    """Return a script call. *items* and *more* are the variable tails of its ARGV and KEYS."""
    spec = SCRIPTS[name]
    known = {"call": call, **(LEASE if name == "lease" else {}), **args}
    names = {"lane": KEYS.lane(lane), "result": KEYS.result(str(args.get("id", "")))}
    argv: list[Any] = []
    for arg in spec["args"]:
        argv += items if arg.endswith("...") else [known[arg]]
    found = [names.get(part) or KEYS.key(part) for part in spec["keys"]]
    return {"script": name, "keys": [*found, *more], "argv": [as_json(arg) for arg in argv]}


def enqueue(*payloads: str, **options: Any) -> Step:
    return call("enqueue", *payloads, form="plain", **options)


def full(id: str, delay: str, *fields: Any, **options: Any) -> Step:
    return call("enqueue", id, delay, len(fields), *fields, form="full", **options)


def lease(worker: str = "w", *, loose: Sequence[Sequence[int]] = (), **options: Any) -> Step:
    return {**call("lease", worker=worker, **options), "loose": loose}


def complete(*items: Any, worker: str = "", **options: Any) -> Step:
    counts = {"limit": 1, "with_ids": 0, "results": 0, "follows": 0}
    return call("complete", *items, worker=worker, **(counts | options))


def command(verb: str, part: str, *args: Any) -> Step:
    return {"command": [verb, KEYS.key(part), *map(as_json, args)]}


def everything(part: str) -> Step:
    return command("XRANGE", part, "-", "+")


def stories() -> dict[str, list[Step]]:
    """Return the stories, whose replies come from a server."""
    full_a = ("data", "1", "id", "a")
    next_queue = Keys.of("shop/mails")
    follow = [next_queue.key(key) for key in (*FOLLOWED, "jobs")]
    level = [KEYS.key("jobs:1")]
    apart = {"sleep": 5}  # entries of two streams may have the same ID
    release = call("release", "<e1>", 1, worker="w", pause=0)
    renew: dict[str, Any] = {"duration": "", "ttl": 0}
    retry: dict[str, Any] = {"worker": "w", "max_attempts": 0, "dead_limit": 1000}
    twice: dict[str, Any] = {**retry, "max_attempts": 2}
    return {
        "a payload, from end to end": [
            enqueue("one"), everything("jobs"), lease(), complete("<e1>"), complete("<e1>"), call("counts"), lease(),
        ],
        "any bytes, and headers after them": [
            full("", "", "data", b"\x00\xff", "traceparent", "00-1-2-01"), everything("jobs"), lease(),
        ],
        "an id is taken until its job is gone": [
            full("a", "", *full_a), full("a", "", *full_a), command("HGET", "ids", "a"), lease(),
            full("a", "", *full_a), complete("<e1>", "a", with_ids=1), full("a", "", *full_a),
        ],
        "a bare XADD": [
            command("XADD", "jobs", "5-1", "data", "x"),
            command("XADD", "jobs", "5-2", "data", "y", "id", "b", "h", "v"), lease(),
            command("HLEN", "ids"), complete("5-1"), complete("5-2", "b", with_ids=1),
        ],
        "what is no job": [
            command("XADD", "jobs", "5-1", "text", "x"), lease(),
            call("dead_letter", "5-1", 1, "no payload", worker="w", dead_limit=10), everything("dead"),
        ],
        "a delay": [
            full("d", f"+{LATER}", "data", "1", "id", "d"), {**call("find", id="d", cursor=""), "loose": [[1, 6]]},
            lease(loose=[[1]]), full("p", "@1", "data", "2", "id", "p"), full("d", "", "data", "3", "id", "d"),
            call("cancel", id="d", ttl=1000), call("cancel", id="d", ttl=1000), lease(),
        ],
        "the fence": [
            enqueue("one"), lease(),
            call("renew", "<e1>", 2, worker="w", **renew), call("renew", "<e1>", 1, worker="v", **renew),
            call("renew", "<e1>", 1, worker="w", **renew), call("release", "<e1>", 1, worker="v", pause=0),
            complete("<e1>", 2, worker="w"), release, release, lease("v"),
            complete("<e1>", 1, worker="w"), complete("<e1>", 2, worker="v"),
        ],
        "the front and the back": [
            full("a", "", *full_a), lease(), full("b", "", "data", "2", "id", "b"), release, lease(limit=1),
            call("retry", "<e1>", 2, "", 1, "again", **retry), everything("jobs"),
            command("HGET", "ids", "a"), lease(),
        ],
        "an attempt that is not spent": [
            enqueue("one"), lease(), call("retry", "<e1>", 1, "", 0, "later", **retry), lease(),
            call("retry", "<e2>", 1, f"+{LATER}", 1, "later", **retry), lease(loose=[[1]]),
            {**call("find", id="<e1>", cursor=""), "loose": [[1, 6]]},
        ],
        "no attempts left": [
            full("a", "", *full_a), lease(), call("retry", "<e1>", 1, "", 1, "first", **twice),
            lease(), apart, call("retry", "<e2>", 1, "", 1, "second", **twice), everything("dead"),
            apart, full("a", "", *full_a), everything("jobs"), complete("<e4>", "a", with_ids=1),
            apart, call("redrive", cursor="-", limit=500, from_step="", payload=""), everything("jobs"), call("counts"),
        ],
        "a dead letter whose payload is mended": [
            full("a", "", *full_a), lease(), call("dead_letter", "<e1>", 1, "bad", worker="w", dead_limit=10), apart,
            call("redrive", "a", cursor="-", limit=500, from_step="", payload="=good"), everything("jobs"),
            call("counts"),
        ],
        "a level behind the first": [
            full("low", "", "data", "1", "id", "low", "enq", "5", "headrace-priority", "1", more=level), apart,
            enqueue("2"), command("XLEN", "jobs:1"), call("counts", more=level), lease(more=level), apart,
            call("release", "<e2>", 1, worker="w", pause=0), enqueue("3"), lease(more=level), call("levels"),
        ],
        "a result, and a job that follows": [
            enqueue("one"), lease(), call("result", "<e1>", id="<e1>"), apart,
            complete(
                "<e1>", 1, LATER, b"\xffdone", 1, "f", "", 0, 4, "data", "2", "id", "f",
                results=1, follows=1, more=[KEYS.prefix + "result:<e1>", *follow],
            ),
            call("result", "<e1>", id="<e1>"),
            {"command": ["XRANGE", follow[0], "-", "+"]}, {"command": ["HGET", follow[2], "f"]},
        ],
        "a call that is sent again": [
            enqueue("one", lane="a", call=1), enqueue("one", lane="a", call=1), command("XLEN", "jobs"),
            enqueue("two", lane="a", call=2), command("XLEN", "jobs"),
            lease(lane="b", call=1), lease(lane="b", call=1), complete("<e1>", lane="b", call=2),
            complete("<e1>", lane="b", call=2), complete("<e1>", lane="b", call=3),
            lease(lane="c", call=1), full("a", "", *full_a, lane="c", call=2), full("a", "", *full_a, lane="c", call=2),
            full("a", "", *full_a, lane="c", call=3),
        ],
        "the life of a worker": [
            enqueue("one"), lease(ttl=0), call("beat", worker="w", timeout=60_000, lease=60_000, register=0),
            call("beat", worker="w", timeout=60_000, lease=60_000, register=1),
            call("beat", worker="w", timeout=60_000, lease=60_000, register=0), lease(ttl=0),
            call("workers"), call("leave", worker="w", limit=500, idle=0), call("workers"), lease(ttl=0), lease("v"),
        ],
        "a lease that expires": [
            enqueue("one"), lease(duration=1), call("beat", worker="v", timeout=60_000, lease=60_000, register=1),
            {"sleep": 50}, call("reclaim", worker="v", timeout=10_000, lease=60_000, limit=500, ageing=0),
            call("renew", "<e1>", 1, worker="w", **renew), lease("v", ttl=0), complete("<e1>"),
        ],
        "a worker that is dead": [
            call("beat", worker="v", timeout=60_000, lease=60_000, register=1), enqueue("one"),
            call("beat", worker="w", timeout=30, lease=60_000, register=1), lease(ttl=0),
            call("reclaim", worker="v", timeout=10_000, lease=60_000, limit=500, ageing=0), {"sleep": 100},
            call("reclaim", worker="v", timeout=10_000, lease=60_000, limit=500, ageing=0),
            call("beat", worker="u", timeout=60_000, lease=60_000, register=1), {"sleep": 50},
            call("reclaim", worker="u", timeout=40, lease=60_000, limit=500, ageing=0),
            call("beat", worker="w", timeout=30, lease=60_000, register=0), lease(ttl=0), lease("v", ttl=0),
        ],
        "what woke a reader is for whoever comes": [
            lease(), enqueue("one"), {"wait": 1}, call("counts"), lease("v", woken=1),
        ],
        "the next reader is woken for what was given back": [
            enqueue("one"), lease(), release, command("XLEN", "wake"), {"wait": 1},
            lease("v", woken=1), command("XLEN", "wake"),
        ],
        "a key of another type": [
            command("SET", "jobs", "x"), enqueue("one"), lease(), {"command": ["GET", KEYS.key("jobs")]},
        ],
    }  # fmt: skip


# -- values ----------------------------------------------------------------------------------------


def as_json(value: Any) -> Any:
    """Return bytes as strings or in hex."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"hex": value.hex()}
    if isinstance(value, (list, tuple)):
        return [as_json(item) for item in value]
    return value


def as_bytes(value: Any) -> bytes:
    """Return the bytes of a value, as the inverse for sent ones."""
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else str(value).encode()


class Symbols:
    """The entry IDs of a story, by number."""

    def __init__(self) -> None:
        self.entries: list[str] = []

    def fill(self, value: Any) -> Any:
        """Replace the symbols in a text that is sent."""
        if isinstance(value, dict):
            return value
        return re.sub(r"<e(\d+)>", lambda match: self.entries[int(match[1]) - 1], str(value))

    def shown(self, value: Any, path: tuple[int, ...], loose: Sequence[Sequence[int]]) -> Any:
        """Return a reply in its written form."""
        if isinstance(value, list):
            return [self.shown(item, (*path, at), loose) for at, item in enumerate(value)]
        if list(path) in [list(some) for some in loose] or (
            isinstance(value, int) and value > 10**12
        ):
            return "<ms>"
        if not isinstance(value, str):
            return value
        if ENTRY.fullmatch(value):
            if value not in self.entries:
                self.entries.append(value)
            return f"<e{self.entries.index(value) + 1}>"
        for number, entry in enumerate(self.entries, 1):
            if value == entry.partition("-")[0]:
                return f"<e{number}.ms>"
        return "<ms>" if re.fullmatch(r"\d{13}", value) else value

    def matches(self, expected: Any, found: Any) -> bool:
        """Tell whether a reply agrees with the recorded one."""
        if isinstance(expected, list):
            alike = isinstance(found, list) and len(expected) == len(found)
            return alike and all(self.matches(a, b) for a, b in zip(expected, found, strict=True))
        if isinstance(expected, dict) and "error" in expected:
            return isinstance(found, dict) and expected["error"] in found.get("error", "")
        if expected == "<ms>":
            return re.fullmatch(r"\d+", str(found)) is not None
        if isinstance(expected, str) and (match := re.fullmatch(r"<e(\d+)(\.ms)?>", expected)):
            number = int(match[1])
            if number == len(self.entries) + 1 and not match[2] and isinstance(found, str):
                self.entries.append(found)
            if number > len(self.entries):
                return False
            entry = self.entries[number - 1]
            return bool(found == (entry.partition("-")[0] if match[2] else entry))
        return type(expected) is type(found) and bool(expected == found)


class Raw:
    """A client that sends raw commands and returns raw replies."""

    def __init__(self, server: Server, protocol: int = 2) -> None:
        self._client = redis.Redis(unix_socket_path=server.path, protocol=protocol)
        self._connection: Any = self._client.connection_pool.get_connection()

    def __call__(self, *words: Any) -> Any:
        self._connection.send_command(*words)
        try:
            return as_json(self._connection.read_response())
        except redis.ResponseError as error:
            return {"error": str(error)}

    def close(self) -> None:
        self._connection.disconnect()
        self._client.close()


def steps(story: Sequence[Step], send: Raw) -> Iterator[tuple[Step, Any, Symbols]]:
    """Play a story and return its steps, with their replies if they have one."""
    send("FLUSHALL")
    symbols = Symbols()
    for step in story:
        if "sleep" in step:
            time.sleep(step["sleep"] / 1000)
        elif "wait" in step:
            send(*Ops(KEYS).wait(step["wait"] / 1000))
        elif "script" in step:
            sent = [as_bytes(symbols.fill(word)) for word in [*step["keys"], *step["argv"]]]
            yield (
                step,
                send("EVAL", script(step["script"]).source, len(step["keys"]), *sent),
                symbols,
            )
        else:
            yield step, send(*(as_bytes(symbols.fill(word)) for word in step["command"])), symbols


def differences(vectors: dict[str, Any], send: Raw) -> list[str]:
    """Return the places where a server's replies differ from a story."""
    return [
        f"{name}: {step.get('script') or step['command']}: {reply!r}, not {step['reply']!r}"
        for name, story in vectors["stories"].items()
        for step, reply, symbols in steps(story, send)
        if not symbols.matches(step["reply"], reply)
    ]


def told(story: Sequence[Step], send: Raw) -> list[Step]:
    """Return a story with the replies of a server."""
    copy = [dict(step) for step in story]
    for step, reply, symbols in steps(copy, send):
        shown = symbols.shown(reply, (), step.pop("loose", ()))
        step["reply"] = (
            {"error": shown["error"].split()[0]}
            if isinstance(shown, dict) and "error" in shown
            else shown
        )
    return copy


# -- the file --------------------------------------------------------------------------------------


def pure() -> dict[str, Any]:
    """Return the vectors that need no server."""
    return {
        "names": {kind: {"valid": good, "invalid": bad} for kind, (_, good, bad) in NAMES.items()},
        "keys": [keys("emails", "headrace"), keys("shop/orders", "my.app")],
        "operations": list(operations()),
        "receipts": [
            {"form": f, "reply": as_json(r), "receipts": receipts(f, r)} for f, r in RECEIPTS
        ],
        "leases": [{"reply": as_json(reply), "jobs": leased(reply)} for reply in LEASES],
    }


def vectors(server: Server) -> dict[str, Any]:
    """Return the whole content of the file."""
    send = Raw(server)
    try:
        return {**pure(), "stories": {name: told(story, send) for name, story in stories().items()}}
    finally:
        send.close()


def dumped(found: dict[str, Any]) -> str:
    """Return the data as JSON, with a line for each vector and for each step of a story."""
    stories = {name: _lines(story, 4) for name, story in found["stories"].items()}
    others = {name: _lines(value, 2) for name, value in found.items() if name != "stories"}
    return _braced({**others, "stories": _braced(stories, 2)}) + "\n"


def _lines(value: Any, margin: int) -> str:
    if isinstance(value, dict):
        return _braced({name: json.dumps(item) for name, item in value.items()}, margin)
    return (
        "[\n"
        + ",\n".join(" " * (margin + 2) + json.dumps(item) for item in value)
        + "\n"
        + " " * margin
        + "]"
    )


def _braced(members: dict[str, str], margin: int = 0) -> str:
    rows = (" " * (margin + 2) + f"{json.dumps(name)}: {text}" for name, text in members.items())
    return "{\n" + ",\n".join(rows) + "\n" + " " * margin + "}"


def main() -> int:
    """Write the file, or check it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the file is stale"
    )
    with Server(binaries()[0]) as server:
        fresh = dumped(vectors(server))
    if not parser.parse_args().check:
        FILE.write_text(fresh, "utf-8")
    elif not FILE.exists() or FILE.read_text("utf-8") != fresh:
        print(f"{FILE} is stale: run python -m tests.interop.vectors", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
