"""Queues with `fair=` and `limits=` in programs. The tests run both colours, leases by hand and
every verb."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import redis

from headrace import ConfigurationError, Debounce, Limit, NewJob, Rate
from headrace.inspect import Share

FAIR = {"fair": "tenant"}


def of(tenant: str, number: int, **more: Any) -> list[NewJob[bytes]]:
    """Make jobs of a tenant."""
    return [
        NewJob(f"{tenant}{at}".encode(), headers={"tenant": tenant}, **more) for at in range(number)
    ]


def tenants(leases: Any) -> Counter[str]:
    """Count the leases of each tenant."""
    return Counter(lease.job.headers.get("tenant", "-") for lease in leases)


def payloads(leases: Any) -> list[bytes]:
    return [lease.job.payload for lease in leases]


# -- shares ----------------------------------------------------------------------------------------


def test_a_flood_does_not_hold_up_others(connect: Any) -> None:
    queue = connect(**FAIR)
    queue.enqueue_many(of("flood", 1200))
    queue.enqueue_many(of("ada", 2))
    found = tenants(lease for _ in range(8) for lease in queue.lease_many(1))
    assert found["ada"] == 2


def test_jobs_of_a_value_keep_their_order(connect: Any) -> None:
    queue = connect(**FAIR)
    queue.enqueue_many([job for pair in zip(of("a", 20), of("b", 20), strict=True) for job in pair])
    leased = payloads(lease for _ in range(8) for lease in queue.lease_many(5))
    for tenant in ("a", "b"):
        own = [name for name in leased if name.decode().startswith(tenant)]
        assert own == [b"%s%d" % (tenant.encode(), at) for at in range(20)]


def test_weights_divide_the_time(connect: Any) -> None:
    queue = connect(fair="tenant", weights={"a": 3.0, "b": 2.0})
    for tenant in "abc":
        queue.enqueue_many(of(tenant, 200, cost=1.0))
    found: Counter[str] = Counter()
    for _ in range(60):
        leases = queue.lease_many(2)
        found += tenants(leases)
        queue.complete_many(leases)
    assert abs(found["a"] - 60) <= 6
    assert abs(found["b"] - 40) <= 6
    assert abs(found["c"] - 20) <= 6


def test_a_cost_counts_for_so_many_jobs(connect: Any) -> None:
    queue = connect(**FAIR)
    queue.enqueue_many(of("dear", 100, cost=4.0) + of("cheap", 100, cost=1.0))
    found: Counter[str] = Counter()
    for _ in range(50):
        leases = queue.lease_many(1)
        assert leases[0].job.cost in (4.0, 1.0)
        found += tenants(leases)
        queue.complete_many(leases)
    assert abs(found["cheap"] - 40) <= 4


def test_two_levels(connect: Any) -> None:
    """An organisation gains nothing by many users."""
    queue = connect(fair="org/user", weights={("big", "user0"): 5.0})
    many = [
        NewJob(b"x", headers={"org": "big", "user": f"user{at % 10}"}, cost=1.0)
        for at in range(200)
    ]
    few = [NewJob(b"x", headers={"org": "small", "user": "ada"}, cost=1.0) for _ in range(100)]
    queue.enqueue_many(many + few)
    found: Counter[str] = Counter()
    for _ in range(60):
        leases = queue.lease_many(1)
        found += Counter(lease.job.headers["org"] for lease in leases)
        queue.complete_many(leases)
    assert abs(found["small"] - 30) <= 3


def test_foreign_producers_are_served(connect: Any, client: redis.Redis) -> None:
    """A bare XADD with the header as a field is a complete job. Jobs without the header share one
    value."""
    queue = connect(**FAIR)
    for at in range(20):
        client.xadd(
            queue.ops.keys.key("jobs"),
            {"data": f"{at}", "tenant": "x"} if at % 2 else {"data": f"{at}"},
        )
    client.xadd(
        queue.ops.keys.key("jobs"), {"data": "late", "tenant": "ada", "headrace-cost": "much"}
    )
    leases = queue.lease_many(6)
    assert tenants(leases)["ada"] == 1
    assert tenants(leases)["-"] in (2, 3)


# -- limits ----------------------------------------------------------------------------------------


def test_at_most_n_of_a_key_and_in_all(connect: Any) -> None:
    queue = connect(limits=[Limit(2, key="tenant"), Limit(3)])
    queue.enqueue_many(of("a", 4) + of("b", 4))
    leases = queue.lease_many(10)
    assert tenants(leases) == {"a": 2, "b": 1}
    assert queue.lease_many(10) == []
    assert leases[0].complete()
    assert tenants(queue.lease_many(10)) == {"a": 1}


def test_a_value_has_a_limit_of_its_own(connect: Any) -> None:
    """Other values have the common limit. The latest declared number counts, and a higher one lets
    its line in."""
    queue = connect(fair="tenant", limits=Limit(3, key="tenant", each={"free": 1, "é:": 4}))
    queue.enqueue_many(of("free", 5) + of("a", 5) + of("é:", 5))
    assert tenants(queue.lease_many(15)) == {"free": 1, "a": 3, "é:": 4}
    assert queue.lease_many(15) == []
    shares = {one.name: (one.running, one.most) for one in queue.admin.shares()}
    assert shares == {"free": (1, 1), "a": (3, None), "é:": (4, 4)}
    other = connect(fair="tenant", limits=Limit(3, key="tenant", each={"free": 2}))
    assert tenants(other.lease_many(15)) == {"free": 1}
    assert queue.lease_many(15) == []
    assert {one.name: one.most for one in queue.admin.shares()} == {
        "free": 2,
        "a": None,
        "é:": None,
    }
    last = connect(fair="tenant", limits=Limit(3, key="tenant"))
    assert tenants(last.lease_many(15)) == {"free": 1}


def test_limits_of_values_are_not_of_other_keys(connect: Any) -> None:
    """The limits of both keys count. A value with a weight keeps its limit."""
    limits = [Limit(2, key="api", each={"a": 1}), Limit(9, key="tenant", each={"a": 3})]
    queue = connect(fair="tenant", weights={"a": 2.0}, limits=limits)
    queue.enqueue_many([NewJob(b"x", headers={"tenant": "a", "api": api}) for api in "abc" * 3])
    assert Counter(lease.job.headers["api"] for lease in queue.lease_many(9)) == {
        "a": 1,
        "b": 1,
        "c": 1,
    }
    assert [(one.weight, one.most) for one in queue.admin.shares()] == [(2.0, 3)]
    queue.admin.redeclare(limits=Limit(9, key="tenant", each={"a": 5}))
    assert len(queue.lease_many(9)) == 2


@pytest.mark.parametrize("end", ["complete", "release", "retry", "dead_letter", "cancel", "expire"])
def test_each_end_of_a_lease_gives_its_slot_back(connect: Any, end: str) -> None:
    queue = connect(limits=Limit(1, key="tenant"))
    queue.enqueue_many(
        [
            NewJob(b"0", id="0", headers={"tenant": "a"}),
            NewJob(b"1", id="1", headers={"tenant": "a"}),
        ]
    )
    (lease,) = queue.lease_many(2)
    match end:
        case "dead_letter":
            assert lease.dead_letter("no")
        case "cancel":
            assert queue.cancel("0")
        case "expire":
            assert queue.admin.expire("0") == 1
        case "retry":
            assert lease.retry(delay=600)
        case _:
            assert getattr(lease, end)()
    (again,) = queue.lease_many(2)
    assert again.job.payload == (b"0" if end in ("release", "expire") else b"1")


def test_jobs_without_the_header_have_no_limit(connect: Any) -> None:
    queue = connect(limits=Limit(1, key="tenant"))
    queue.enqueue_many([b"x"] * 3)
    assert len(queue.lease_many(5)) == 3


def test_a_limit_by_the_key_of_jobs(connect: Any) -> None:
    queue = connect(limits=Limit(1, key="headrace-key"))
    queue.enqueue(b"1", key="a")
    queue.enqueue(b"2", key="a")
    queue.enqueue(b"3", key="b")
    assert payloads(queue.lease_many(5)) == [b"1", b"3"]


def test_with_fair_the_value_that_had_the_least_and_has_a_slot(connect: Any) -> None:
    queue = connect(fair="tenant", limits=Limit(1, key="tenant"))
    queue.enqueue_many(of("a", 3) + of("b", 3))
    assert tenants(queue.lease_many(6)) == {"a": 1, "b": 1}


# -- with the other features -----------------------------------------------------------------------


def test_priorities_are_strict_and_fair_within(connect: Any) -> None:
    queue = connect(priorities=2, **FAIR)
    queue.enqueue_many(of("a", 4, priority=1) + of("b", 1, priority=1) + of("c", 2))
    assert tenants(queue.lease_many(2)) == {"c": 2}
    assert tenants(queue.lease_many(2)) == {"a": 1, "b": 1}


def test_ordered_keys_keep_their_order(connect: Any) -> None:
    queue = connect(ordered=True, **FAIR)
    for at in range(3):
        queue.enqueue(b"k%d" % at, key="k", headers={"tenant": "a"})
    queue.enqueue(b"other", headers={"tenant": "b"})
    leases = queue.lease_many(5)
    assert sorted(payloads(leases)) == [b"k0", b"other"]
    first = next(lease for lease in leases if lease.job.key)
    assert first.complete()
    assert payloads(queue.lease_many(5)) == [b"k1"]


def test_a_rate_bounds_how_many_the_shares_say_whose(connect: Any) -> None:
    queue = connect(rate=Rate(2, per=600), **FAIR)
    queue.enqueue_many(of("a", 3) + of("b", 3))
    assert tenants(queue.lease_many(6)) == {"a": 1, "b": 1}
    assert queue.lease_many(6) == []


def test_a_job_that_is_gone_gives_its_token_back(connect: Any) -> None:
    queue = connect(rate=Rate(2, per=600, key="tenant"), **FAIR)
    queue.enqueue_many([NewJob(b"%d" % at, id=f"{at}", headers={"tenant": "a"}) for at in range(3)])
    assert payloads(queue.lease_many(1)) == [b"0"]
    assert queue.cancel("1")
    assert payloads(queue.lease_many(1) or queue.lease_many(1)) == [b"2"]
    queue.enqueue(b"3", headers={"tenant": "a"})
    assert queue.lease_many(1) == []


def test_a_released_job_is_in_front_of_its_value(connect: Any) -> None:
    queue = connect(**FAIR)
    queue.enqueue_many(of("a", 3))
    first, second = queue.lease_many(2)
    assert second.release()
    assert first.release()
    assert payloads(queue.lease_many(3)) == [b"a0", b"a1", b"a2"]


def test_delayed_jobs_join_their_line_when_due(connect: Any) -> None:
    queue = connect(**FAIR)
    queue.enqueue(b"later", id="l", delay=600, headers={"tenant": "ada"})
    queue.enqueue_many(of("flood", 20))
    assert tenants(queue.lease_many(2)) == {"flood": 2}
    assert queue.admin.reschedule("l", 0)
    assert tenants(queue.lease_many(2))["ada"] == 1


def test_jobs_in_lines_are_counted_listed_and_cancelled(connect: Any) -> None:
    queue = connect(**FAIR)
    queue.enqueue_many([NewJob(b"x", id=f"{at}", headers={"tenant": "a"}) for at in range(5)])
    assert len(queue.lease_many(1)) == 1
    counts = queue.counts()
    assert (counts.waiting, counts.leased, counts.lost) == (4, 1, 0)
    assert queue.find("3").state == "waiting"
    assert queue.cancel("3")
    assert queue.admin.purge() == 3
    assert queue.counts().lost == 0
    assert queue.admin.repair().total == 0


def test_conditions_work_on_jobs_in_lines(connect: Any) -> None:
    queue = connect(**FAIR)
    queue.enqueue(b"1", id="a", headers={"tenant": "x"})
    queue.enqueue(b"2", id="b", headers={"tenant": "x"})
    assert len(queue.lease_many(1)) == 1
    assert (
        queue.enqueue(b"3", id="b", headers={"tenant": "x"}, if_exists=Debounce(600)).outcome
        == "moved"
    )
    assert queue.lease_many(1) == []


# -- the declaration -------------------------------------------------------------------------------


def test_numbers_may_differ_and_the_latest_count(connect: Any) -> None:
    queue = connect(limits=Limit(1))
    queue.enqueue_many(of("a", 3))
    assert len(queue.lease_many(3)) == 1
    other = connect(limits=Limit(2))
    assert len(other.lease_many(3)) == 1
    assert queue.lease_many(3) == []


def test_a_queue_that_was_deleted_gets_its_terms_again(connect: Any, client: redis.Redis) -> None:
    queue = connect(fair="tenant", weights={"a": 2.0}, limits=Limit(1))
    terms = queue.ops.keys.key("terms")
    for _ in range(2):
        queue.enqueue_many(of("a", 3))
        (lease,) = queue.lease_many(3)
        assert lease.complete()
        assert len(queue.lease_many(3)) == 1
        assert client.hget(terms, "w1:a") == b"2"
        queue.admin.delete()
        assert not client.exists(terms)


def test_an_operator_changes_the_structure(connect: Any) -> None:
    """Jobs in lines get new lines. Running jobs keep their slots until they end."""
    queue = connect(**FAIR)
    queue.enqueue_many(
        [
            NewJob(b"x", headers={"tenant": f"{at}", "org": "big" if at else "small"})
            for at in range(9)
        ]
    )
    (lease,) = queue.lease_many(1)
    queue.admin.redeclare(fair="org", limits=Limit(3))
    assert lease.complete()
    assert len(connect(limits=Limit(9)).lease_many(1)) == 1
    assert len(queue.lease_many(9)) == 2
    assert connect(fair="org", limits=Limit(4)).lease() is not None
    queue.admin.redeclare()
    assert len(connect().lease_many(9)) == 4


def test_bad_terms_send_nothing(connect: Any) -> None:
    queue = connect(**FAIR)
    with pytest.raises(ConfigurationError):
        queue.enqueue(b"x", cost=0)
    assert queue.counts().enqueued == 0


# -- seen ------------------------------------------------------------------------------------------


def test_shares_of_the_busiest_values(connect: Any) -> None:
    queue = connect(**FAIR)
    queue.enqueue_many(of("a", 5) + of("b", 2) + [NewJob(b"x")])
    leases = queue.lease_many(4)
    shares = {share.name: share for share in queue.admin.shares()}
    assert shares.keys() == {"a", "b", "-"}
    assert all(isinstance(share, Share) for share in shares.values())
    assert {name: share.running for name, share in shares.items()} == dict(tenants(leases))
    assert sum(share.waiting for share in shares.values()) == 4
    assert shares["a"].value == ("a",)
    assert connect("other").admin.shares() == []


@pytest.mark.parametrize(
    "limits", [None, Limit(5000, key="user")], ids=["a line a value", "lines by another key"]
)
def test_shares_of_the_longest_waiting_values(connect: Any, large: bool, limits: Any) -> None:
    """Beside the busiest ones: by the oldest job that still waits, whatever the names, and the jobs
    of a flood."""
    queue = connect(fair="tenant", limits=limits, priorities=2)
    queue.enqueue_many([job for at in range(10) for job in of(f"busy{at}", 1)])
    busy = queue.lease_many(10)
    names = [f"{5000 - at}" for at in range(1100 if large else 40)]

    def jobs(at: int, number: int = 1, **more: Any) -> list[NewJob[bytes]]:
        return [NewJob(b"x", headers={"tenant": names[at], "user": f"{at % 7}"}, **more)] * number

    queue.enqueue_many(of("first", 1))
    for at in range(10):  # at several moments
        queue.enqueue(b"x", id=f"{names[at]}-0", headers=jobs(at)[0].headers)
    queue.enqueue_many(jobs(1, 2) + [job for at in range(10, len(names)) for job in jobs(at)])
    queue.enqueue_many(of("flood", 50))
    queue.complete_many(busy)
    assert tenants(queue.lease_many(1)) == {"first": 1}
    shares = queue.admin.shares()
    assert {share.name[:4] for share in shares[:10]} == {"busy"}
    assert {share.oldest for share in shares[:10]} == {None}
    late = {share.name: share.oldest for share in shares[10:]}
    assert len(late) == 10
    assert {*names[:9]} <= late.keys() <= {*names[:20]}  # some have the same ms
    assert list(late.values()) == sorted(late.values(), reverse=True)
    assert all(age is not None and 0 < age < 60 for age in late.values())
    for name in names[1:3]:
        assert queue.cancel(f"{name}-0")
    late = {share.name: share.oldest for share in queue.admin.shares()[10:]}
    assert names[2] not in late
    assert {names[0], *names[3:9]} <= late.keys()


@pytest.mark.parametrize("after", [{}, {"fair": "org"}], ids=["none", "others"])
def test_levels_stay_when_terms_change(connect: Any, after: dict[str, Any]) -> None:
    """Jobs of a later level that are in lines do not come before the first level's."""
    queue = connect(limits=Limit(1, key="tenant"), priorities=3)

    def add(level: int) -> None:
        queue.enqueue_many([NewJob(b"%d" % level, priority=level, headers={"tenant": "a"})] * 3)
        queue.lease_many(9)

    for level in (2, 1, 0):
        add(level)
    queue.admin.redeclare(**after)
    assert [lease.job.payload for lease in queue.lease_many(9)] == [b"0"] * 3 + [b"1"] * 3 + [
        b"2"
    ] * 2
    assert queue.counts().lost == 0


def test_shares_count_no_job_that_was_cancelled(connect: Any, large: bool) -> None:
    queue = connect(fair="tenant", limits=Limit(1, key="tenant"))
    number = 600 if large else 100
    for tenant in "ab":
        queue.enqueue_many(
            [NewJob(b"x", id=f"{tenant}{at}", headers={"tenant": tenant}) for at in range(number)]
        )
    assert len(queue.lease_many(9)) == 2
    assert {share.value[0]: share.waiting for share in queue.admin.shares()} == {
        "a": number - 1,
        "b": number - 1,
    }
    for state in list(queue.admin.waiting()):
        if state.job.id not in ("a7", "b8", "b9"):
            assert queue.cancel(state.job.id)
    assert {share.value[0]: share.waiting for share in queue.admin.shares()} == {"a": 1, "b": 2}
    assert queue.counts().parked + queue.counts().waiting == 3


def test_at_most_once_is_refused_with_limits(connect: Any) -> None:
    """A job that is complete has no slot while it runs."""
    queue = connect(limits=Limit(1, key="tenant"))
    with pytest.raises(ConfigurationError, match=r"at_most_once: .* nor with limits"):
        queue.lease(at_most_once=True)
