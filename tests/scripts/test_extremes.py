"""Each argument of every script at its extremes. The value is accepted, or refused before the first
write."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis
from attrs import evolve

from headrace import NewJob, Queue
from headrace._model.checks import FOREVER_S, INTEGER_AT_MOST
from headrace._model.job import Claim
from headrace._model.policy import Rate
from headrace._model.settings import QueueSettings
from headrace._protocol import admin_ops
from headrace._protocol.features.runs import ops as step_ops
from headrace._protocol.op import Op
from headrace._protocol.queue_ops import Ops
from headrace._protocol.script import header
from headrace.inspect import Repairs
from tests.conftest import Servers
from tests.scripts.calls import CALLS, OPS
from tests.scripts.conftest import dumps, restore
from tests.support.servers import Server, binaries

LONGEST = int(FOREVER_S * 1000)
YEAR_10000 = 253_402_300_800_000
NO_NUMBERS = [
    "",
    "x",
    "-1",
    "nan",
    "inf",
    "1e400",
    "1.5",
    str(sys.maxsize),
    str(INTEGER_AT_MOST + 2),
]
NUMBERS = ["0", "1", str(LONGEST), str(YEAR_10000), str(INTEGER_AT_MOST)]
NO_DELAYS = ["x", "+", "5", "+-1", "+1e400", "@nan", "@1.5", f"+{sys.maxsize}"]
DELAYS = ["", "+0", f"+{LONGEST}", f"+{INTEGER_AT_MOST}", "@0", f"@{YEAR_10000}"]
CURSORS = [
    "",
    "-",
    "0",
    "(",
    "x" * 500,
    "9" * 40,
    "\0",
    "new:9 -",
    "level:9",
    "delayed x",
    "5-1 5",
    "%d",
    "1 1 1",
]
KINDS = {  # by the name of an argument; one that has none here fails the test
    "number": "timeout lease ttl limit duration max_attempts dead_limit results follows result_ttl stages members due"
    " next ageing pause most batch awaits number from come over since seconds version delivery token attempt took"
    " after level concurrency depth",
    "delay": "delay",
    "cursor": "cursor place state which",
    "text": "call worker id payload name form seen timing missed heir_of stage attributes prefix woken with_ids"
    " from_step register decide serving idle entry set together sharded hourly queue known queues schedule enq"
    " fraction text is_over release_key every kind traced mode structure offered one_value newest paused dry request"
    " timed quiet apart by began build waits_for ring counted home parent child open",
    "items": "items... value... wanted... buckets... fields... kinds... moments... names... nonces... rows... sets..."
    " waits... ids... gone...",
}
NUMBERS_OF_ITEMS = {
    "limit",
    "stages",
    "results",
    "follows",
    "members",
    "come",
    "over",
    "level",
    "concurrency",
}
KIND = {name: kind for kind, names in KINDS.items() for name in names.split()}
CASES = [
    (name, number, argument)
    for name in CALLS
    for number, argument in enumerate(header(name).args())
    if argument != "pause" or name == "release"  # 1, or anything else
]
RATED = Ops(OPS.keys, QueueSettings(rate=(Rate(1), Rate(5, key="k"))))


def contents(client: Any) -> dict[Any, Any]:
    """Return the answer of `dumps` without the order of large hashes and sets, because a server
    changes that by itself.
    """
    read = {b"hash": client.hgetall, b"set": client.smembers}
    dumped = dumps(client)
    return {
        key: read.get(client.type(key), lambda _, dump=dump: dump)(key)
        for key, dump in dumped.items()
    }


@pytest.fixture(params=[binaries()[0], binaries()[-1]], ids=lambda one: one.name)
def server(request: pytest.FixtureRequest, servers: Servers) -> Server:
    """The first and the last server of the matrix. The scripts alone handle numbers."""
    return servers(request.param)


@pytest.fixture
def queue(server: Server) -> Iterator[Queue]:
    """Make a queue with jobs in every state. Worker `w` has leased three of them."""
    with Queue("shop/orders", url=server.url, dead_limit=5) as queue:
        yield queue


def prepare(queue: Queue) -> list[Claim]:
    """Fill an empty server and return the claims of `w`."""
    claims = []
    queue.enqueue_many(
        [*(NewJob(b"x", id=f"i{n}", headers={"k": "v"}) for n in range(4)), *[b"x"] * 6]
    )
    for number, lease in enumerate(queue.lease_many(6)):
        if number < 3:
            lease.release()
        if number == 3:
            lease.dead_letter("why")
    queue.enqueue_many(
        [NewJob(b"x", id="late", delay=LONGEST / 1000), NewJob(b"x", id="i", delay=60.0)]
    )
    queue.admin.schedule("s", b"x", every=60.0)
    granted = queue._run(queue.ops.lease("w", 3, ttl=60.0, duration=FOREVER_S))
    assert granted is not None
    claims += granted.claims
    assert len(claims) == 3
    return claims


def operation(name: str, claims: list[Claim]) -> Op[Any]:
    """Return an operation of that name with as much to do as possible."""
    follow = NewJob(b"y", id="next", delay=5.0, queue="shop/bills")
    made: dict[str, Callable[[], Op[Any]]] = {
        "complete": lambda: OPS.complete(
            claims[:1], fenced=True, results={claims[0].entry: b"r"}, then=[follow]
        ),
        "dead_letter": lambda: OPS.dead_letter([(claim, "why") for claim in claims]),
        "enqueue": lambda: OPS.enqueue([OPS.item(NewJob(b"x", id="n", delay=5.0)), b"x"]),
        "expire": lambda: admin_ops.expire(OPS, "-", []),
        "lease": lambda: RATED.lease("w", 10, duration=5.0, ttl=60.0, predecessor="v"),
        "move": lambda: admin_ops.move(OPS, "shop/bills", "-", []),
        "purge_dead": lambda: admin_ops.purge_dead(OPS, "-", []),
        "redrive": lambda: admin_ops.redrive(OPS, "-", []),
        "release": lambda: OPS.release(claims, pause=5.0),
        "renew": lambda: OPS.renew(claims, duration=5.0, ttl=5.0),
        "step": lambda: step_ops.record(
            OPS, claims[0], 0, "n", b"v", ended=True, took=0.5, ttl=5.0
        ),
        "suspend": lambda: step_ops.suspend(OPS, claims[0], [1]),
        "retry": lambda: OPS.retry([(claim, 5.0, 1, "why") for claim in claims], max_attempts=1),
        "wait": lambda: step_ops.wait(OPS, claims[0], "n", "sleep", "+5000"),
    }
    return made[name]() if name in made else CALLS[name].sample


class Sender:
    """Sends an operation with one argument replaced, each time to the server as it was filled for
    it."""

    def __init__(self, queue: Queue, client: redis.Redis, name: str, number: int) -> None:
        self._queue, self._client = queue, client
        self._words = [*operation(name, prepare(queue)).wire("EVAL", "l", "1")]
        self._place = 3 + int(self._words[2]) + number
        self._filled = dumps(client)

    def error(self, value: str) -> str:
        """Return the error that *value* causes without a change, or an empty text if the queue is
        sound."""
        restore(self._client, self._filled)
        self._words[self._place] = value
        before = contents(self._client)
        try:
            self._client.execute_command(*self._words)
        except redis.ResponseError as error:
            assert contents(self._client) == before, f"{value!r}: half done: {error}"  # noqa: PT017
            return str(error)
        self._is_sound(value)
        return ""

    def _is_sound(self, value: str) -> None:
        """Check that no job is lost or in two places, and that a repair finds nothing."""
        assert self._queue.counts().lost == 0, value
        repairs = self._queue.admin.repair()
        # jobs that were leased before there were terms
        assert evolve(repairs, slots=0) == Repairs(), value


def test_every_argument_is_of_some_kind() -> None:
    assert {argument for _, _, argument in CASES} == set(KIND)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "number", "argument"),
    [
        pytest.param(*case, id=f"{case[0]}-{case[2]}")
        for case in CASES
        if KIND[case[2]] not in {"items", "text"}
    ],
)
def test_an_argument_at_its_extremes(
    queue: Queue, client: redis.Redis, name: str, number: int, argument: str
) -> None:
    kind, sender = KIND[argument], Sender(queue, client, name, number)
    for value in {"number": NUMBERS, "delay": DELAYS, "cursor": CURSORS}[kind]:
        error = sender.error(value)
        assert not error or kind != "delay", value
        assert not error or value not in {"1", str(LONGEST)} or argument in NUMBERS_OF_ITEMS, value
    for value in {"number": NO_NUMBERS, "delay": NO_DELAYS, "cursor": []}[kind]:
        if argument != "duration" or value:
            assert "ARGUMENT" in sender.error(value), value
