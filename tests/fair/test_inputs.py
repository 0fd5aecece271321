"""Inputs that an order by virtual time got wrong. Rings get them right in the model and in the
scripts.

Both run through one set of calls: `Modelled` and `Real` have `add`, `lease` and `end`. Times are
ms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median
from typing import Any

import pytest

from headrace import Limit, NewJob
from tests.fair import model
from tests.support.servers import Server


class Modelled:
    """The model with its own clock."""

    def __init__(self, fair: str = "tenant", **terms: Any) -> None:
        limits = [model.Limit(limit.most, limit.key) for limit in terms.get("limits", [])]
        weights = {(name,): weight for name, weight in terms.get("weights", {}).items()}
        self.queue = model.FairQueue(tuple(fair.split("/")), weights, limits)
        self.now = 0.0

    def add(self, *values: str, cost: float | None = None) -> None:
        for value in values:
            self.queue.enqueue(dict(zip(self.queue.path, value.split("/"), strict=True)), cost=cost)

    def lease(self, number: int) -> list[model.Job]:
        return self.queue.lease(self.now, number)

    def end(self, leases: list[model.Job], ms: float) -> None:
        self.now += ms
        for job in leases:
            self.queue.end(job, job.since + ms)

    def name(self, lease: model.Job) -> str:
        return "/".join(lease.headers.values())


class Real:
    """A queue of a real server. The times of leases are written into their slots, so no test
    waits."""

    def __init__(self, server: Server, fair: str = "tenant", **terms: Any) -> None:
        self.path = fair.split("/")
        self.queue = server.queue("q", fair=fair, **terms)
        self.client = server.client(decode_responses=True)
        self.held = self.queue.ops.keys.key("held")
        self.settled = self.queue.ops.keys.key("settled")

    def add(self, *values: str, cost: float | None = None) -> None:
        for at in range(0, len(values), 1000):
            headers = [
                dict(zip(self.path, value.split("/"), strict=True))
                for value in values[at : at + 1000]
            ]
            self.queue.enqueue_many([NewJob(b"x", headers=each, cost=cost) for each in headers])

    def lease(self, number: int) -> list[Any]:
        found: list[Any] = self.queue.lease_many(number)
        return found

    def end(self, leases: list[Any], ms: float) -> None:
        for at in range(0, len(leases), 500):
            some = leases[at : at + 500]
            assert all(self.queue.complete_many(some))
            texts = self.client.lrange(self.settled, 0, -1)
            self.client.delete(self.settled)
            for text in texts:
                if not text.startswith("@"):
                    self.client.rpush(self.settled, f"@{float(text.split(' ')[0]) + ms:.3f}", text)

    def name(self, lease: Any) -> str:
        return "/".join(lease.job.headers[name] for name in self.path)


@pytest.fixture(params=["model", "scripts"])
def make(request: Any) -> Iterator[Any]:
    """Make a queue of the model or of the newest server."""
    if request.param == "model":
        yield Modelled
        return
    server, made = request.getfixturevalue("newest"), list[Real]()

    def real(*args: Any, **terms: Any) -> Real:
        made.append(Real(server, *args, **terms))
        return made[-1]

    yield real
    for one in made:
        one.queue.close()
        one.client.close()


def test_a_value_is_not_passed_by_newcomers(make: Any) -> None:
    """One value has 49 waiting jobs, and three new values have a job each at every lease."""
    queue = make()
    queue.add(*["ada"] * 49, "n0", "n1", "n2")
    order = []
    for number in range(110):
        leases = queue.lease(1)
        order.append(queue.name(leases[0]))
        queue.end(leases, 1.0)
        if order[-1] != "ada":
            queue.add(f"n{number + 3}")
    assert order.count("ada") == 49


def test_a_weight_counts_among_newcomers(make: Any) -> None:
    """A value of weight 1,000 has at least half of 200 leases."""
    queue = make(weights={"ada": 1000.0})
    queue.add(*["ada"] * 201, "n0", "n1", "n2")
    order = []
    for number in range(200):
        leases = queue.lease(1)
        order.append(queue.name(leases[0]))
        queue.end(leases, 1.0)
        if order[-1] != "ada":
            queue.add(f"n{number + 3}")
    assert order.count("ada") >= 100


@pytest.mark.slow
def test_nobody_pays_for_an_hour_ago(make: Any) -> None:
    """A job ran for a second, then 2,000 jobs of others for 1 ms each. The next job of its tenant
    is among the next 8.
    """
    queue = make()
    queue.add("ada")
    queue.end(queue.lease(1), 1000.0)
    queue.add("b", "c", "d")
    for _ in range(400):
        leases = queue.lease(5)
        for lease in leases:
            queue.add(queue.name(lease))
        queue.end(leases, 1.0)
    for _ in range(320):
        leases = queue.lease(3)
        for lease in leases:
            queue.add(queue.name(lease))
        queue.end(leases, 1.0)
    queue.add("ada")
    order = []
    for _ in range(8):
        leases = queue.lease(1)
        order.append(queue.name(leases[0]))
        queue.add(order[-1])
        queue.end(leases, 1.0)
    assert "ada" in order


def test_no_name_decides(make: Any) -> None:
    """A value with a long name has the first job before 400 jobs of short names, of which 397 came
    later."""
    queue = make()
    queue.add(
        "a",
        "b",
        "c",
        "a-very-long-name-of-a-tenant-that-nobody-would-choose",
        *[f"{n}" for n in range(397)],
    )
    order = [queue.name(queue.lease(1)[0]) for _ in range(10)]
    assert any(len(name) > 20 for name in order)


@pytest.mark.slow
def test_values_that_came_once_leave_nothing(make: Any) -> None:
    """10,000 values come once while the queue is never idle."""
    queue = make()
    queue.add("always")
    running = queue.lease(1)
    for number in range(0, 10_000, 200):
        queue.add(*[f"once-{n}" for n in range(number, number + 200)], "always")
        leases = queue.lease(201)
        assert len(leases) == 201
        again = next(lease for lease in leases if queue.name(lease) == "always")
        leases.remove(again)
        queue.end([*leases, *running], 1.0)
        running = [again]
    assert queue.lease(1) == []
    if isinstance(queue, Modelled):
        assert len(queue.queue.children) == 1
        return
    assert len(queue.client.hkeys(queue.queue.ops.keys.key("shares"))) <= 3
    sizes = {key: queue.client.memory_usage(key) for key in queue.client.scan_iter("*")}
    assert sum(sizes.values()) <= 20_000, sizes


def ends_of_one_organisation(newest: Server, number: int) -> tuple[float, float]:
    """End 200 leases of an organisation with two slots and *number* stopped lines.

    Returns medians: the server's microseconds of an end, and the commands of the next lease.
    """
    queue = Real(newest, "org/user", limits=[Limit(2, key="org")])
    try:
        queue.add(*[f"o/{n}" for n in range(number)])
        leases = queue.lease(2)
        for _ in range(number // 50):
            queue.lease(1)  # looks at all
        seen, spent, calls = list[str](), list[int](), list[int]()
        for _ in range(100):
            seen += [queue.name(lease) for lease in leases]
            queue.client.config_resetstat()
            assert all(queue.queue.complete_many(leases))
            spent.append(queue.client.info("commandstats")["cmdstat_evalsha"]["usec"])
            queue.client.config_resetstat()
            leases = queue.lease(2)
            assert len(leases) == 2
            calls.append(sum(row["calls"] for row in queue.client.info("commandstats").values()))
        assert len(set(seen)) == 200
        return median(spent) / 2, median(calls)
    finally:
        queue.queue.admin.delete()
        queue.queue.close()
        queue.client.close()


def test_an_end_costs_as_much_with_2000_stopped_lines(newest: Server) -> None:
    """An end looks at one stopped line, so it costs as much as with few of them."""
    few, _ = ends_of_one_organisation(newest, 300)
    many, commands = ends_of_one_organisation(newest, 2000)
    assert many <= 2 * few
    assert commands <= 100


@pytest.mark.slow
def test_credits_are_numbers_to_the_end(make: Any) -> None:
    """The weight is 0.001 and the cost 1e6. Two equal tenants get equal shares of 10,000 jobs."""
    queue = make(weights={"a": 0.001, "b": 0.001})
    queue.add(*["a", "b"] * 5000, cost=1e6)
    counted: Counter[str] = Counter()
    for _ in range(60):
        leases = queue.lease(150)
        counted.update(queue.name(lease) for lease in leases)
        assert abs(counted["a"] / counted.total() - 0.5) <= 0.02
        queue.end(leases, 1.0)


@pytest.mark.slow
def test_weights_of_slow_handlers(make: Any) -> None:
    """The shares are 3:2:1 over 3,000 leases and over each 600. 20 handlers take 30 ms each."""
    weights = {"gold": 3.0, "silver": 2.0, "tin": 1.0}
    queue = make(weights=weights)
    queue.add(*list(weights) * 30)
    order: list[str] = []
    running = list[Any]()
    while len(order) < 3000:
        leases = queue.lease(20 - len(running))
        names = [queue.name(lease) for lease in leases]
        order += names
        queue.add(*names)
        running += leases
        queue.end(running[:5], 30.0)
        del running[:5]
    for some in [order[:3000], *(order[at : at + 600] for at in range(0, 3000, 600))]:
        for name, weight in weights.items():
            share = some.count(name) / len(some)
            assert abs(share - weight / 6) <= 0.05 * weight / 6, (name, len(some), share)
