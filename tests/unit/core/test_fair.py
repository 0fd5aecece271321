"""Fair queues, driven by hand. The tests are about the declaration, the look at new jobs, shares
and log events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from attrs import evolve

from headrace import Limit
from headrace._core.effects import HeldJob, Now, Phase, Send, Sleep, Undoable
from headrace._core.fair.declaring import redeclare
from headrace._core.fair.leasing import LOOKS_AT_MOST, FairLeaser, leaser
from headrace._core.fair.roles import fair_roles, line_up
from headrace._core.fair.shares import joined, joined_slots, shares
from headrace._core.worker.ahead import by_turns, spread, with_waiting
from headrace._core.worker.consumer import START_WITHIN_S, Consumer
from headrace._core.worker.fetch import fetch, lines_up
from headrace._core.worker.lifecycle import Lifecycle
from headrace._core.worker.shared_read import everywhere
from headrace._core.worker.terms import JOBS_WITHOUT_KEY
from headrace._model.job import KEY, PRIORITY
from headrace._model.settings import QueueSettings, WorkerSettings
from headrace._model.terms import LimitView, Share, SlotView
from headrace._protocol.features import fair as fair_ops
from headrace._protocol.features.fair import DeclaredTerms
from headrace._protocol.keys import Keys
from headrace._protocol.limits import POLL_S
from headrace._protocol.queue_ops import Ops
from headrace._protocol.replies import Declaration, Grant, Reclaimed
from headrace._protocol.view_ops import About
from tests.support.facts import each
from tests.unit.core.test_roles import Hand, grant, limit, make_consumer, make_held, names

TENANT = "fair=tenant limits= rates="


def told(structure: str, *, again: bool = False) -> DeclaredTerms:
    return DeclaredTerms(again, structure, Declaration(1, {}))


def test_nothing_is_leased_before_the_terms_are_declared() -> None:
    consumer = make_consumer(fair="tenant")
    fair = consumer.leasing.fair
    assert fair is not None
    fair.undeclared = True
    assert lines_up(consumer)
    fetching, role = Hand(fetch(consumer)), Hand(line_up(consumer))
    assert isinstance(fetching.go(), Sleep)
    assert names(role.go()) == ["declare_terms"]
    role.go([told("fair=tenant limits= rates=")])
    assert role.pokes
    assert not lines_up(consumer)
    assert names(fetching.go()) == ["lease_fair"]


def of_tenants(consumer: Consumer, tenants: str, first: int = 1) -> list[HeldJob]:
    """Return leased jobs with the first letter of their tenant, which is also their
    organisation's."""
    jobs = [make_held(consumer, number) for number in range(first, first + len(tenants))]
    for held, tenant in zip(jobs, tenants, strict=True):
        headers = {"tenant": tenant, "org": tenant.lower(), "user": tenant}
        held.job = evolve(held.job, headers=headers)
    return jobs


def order_of(units: list[list[HeldJob]]) -> str:
    return "".join(unit[0].job.headers["tenant"] for unit in units)


def test_values_take_turns_while_they_wait_for_a_handler() -> None:
    """A job of a quiet value starts before jobs of a flood that were leased earlier. The flood's
    jobs keep their order.
    """
    consumer = make_consumer(fair="tenant")
    consumer.jobs.mean = 0.005
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go([Grant(of_tenants(consumer, "ffff"))])
    hand.run(consumer)
    consumer.leasing.available = True
    flood = [unit[0].entry for unit in hand.backlog]
    consumer.slot_freed()
    assert "lease_fair" in names(hand.go())
    hand.go([[True], Grant(of_tenants(consumer, "qr", first=7))])
    assert order_of(hand.backlog) == "fqrff"
    assert [unit[0].entry for unit in hand.backlog if order_of([unit]) == "f"] == flood


@each(
    ("change", "order"),
    [
        ({"concurrency": 1}, "fffq"),
        ({"mean": 0.0001}, "fffq"),
        ({"fair": None, "limits": Limit(9)}, "fffq"),
        ({}, "fqff"),
    ],
)
def test_jobs_wait_in_the_order_of_their_leases(change: dict[str, Any], order: str) -> None:
    """With one handler, without `fair`, or when every job starts at once, jobs keep the order of
    their leases."""
    mean = change.pop("mean", 0.005)
    consumer = make_consumer(**({"fair": "tenant"} | change))
    consumer.jobs.mean = mean
    for held in of_tenants(consumer, "fffq") + of_tenants(consumer, "xx", first=5):
        consumer.jobs.held[held.entry] = held
    waiting, fresh = (
        [[one] for one in of_tenants(consumer, "fff")],
        [[one] for one in of_tenants(consumer, "q")],
    )
    role = with_waiting(consumer, fresh)
    try:
        next(role)
        role.send((waiting, True))
    except StopIteration as end:
        units = end.value
    assert order_of(units if len(units) > 1 else [*waiting, *units]) == order


@each(
    ("fair", "weights", "units", "order"),
    [
        ("tenant", {}, "aaabbc", "abcaba"),
        ("tenant", {"a": 2.0}, "aaaabb", "aabaab"),
        # first of each organisation; in `a` the users take turns
        ("org/user", {}, "AAaaAb", "AbaAaA"),
        ("org/user", {("a",): 3.0}, "AAaaAbb", "AabAaAb"),
    ],
)
def test_turns_are_by_weight_and_by_level(fair: str, weights: Any, units: str, order: str) -> None:
    settings = QueueSettings(fair=fair, weights=weights)
    assert settings.terms is not None
    consumer = make_consumer(fair=fair)
    waiting = [[one] for one in of_tenants(consumer, units)]
    assert order_of(by_turns(settings.terms.path, dict(settings.terms.weights), waiting)) == order


def test_lower_priorities_stay_behind() -> None:
    consumer = make_consumer(fair="tenant")
    first, second, third = of_tenants(consumer, "aab")
    third.job = evolve(third.job, headers={**third.job.headers, PRIORITY: "1"})
    terms = consumer.ops.settings.terms
    assert terms is not None
    assert by_turns(terms.path, {}, [[third], [first], [second]]) == [[first], [second], [third]]


def test_terms_that_are_gone_are_declared_again() -> None:
    consumer = make_consumer(fair="tenant")
    fetching, role = Hand(fetch(consumer)), Hand(line_up(consumer))
    fetching.go()
    fetching.go([evolve(grant(consumer), structure="", elsewhere=True)])
    assert lines_up(consumer)
    assert names(role.go()) == ["declare_terms"]


def test_a_worker_with_other_terms_obeys_says_so_once_and_asks_on() -> None:
    consumer = make_consumer(concurrency=3, fair="tenant")
    consumer.leasing.fair.undeclared = True  # type: ignore[union-attr]
    fetching, role = Hand(fetch(consumer)), Hand(line_up(consumer))
    role.go()
    assert isinstance(role.go([told("")]), Sleep)
    assert names(fetching.go()) == ["lease"]
    for _ in range(2):
        role.now += POLL_S
        assert names(role.go()) == ["declare_terms"]
        assert isinstance(role.go([told("")]), Sleep)
    (text,) = role.said
    assert text.startswith(
        "terms_differ: queue 'q' has the terms none, and this worker declares `fair=tenant"
    )
    assert not consumer.may_idle()
    role.now += POLL_S
    role.go()
    role.go([told("fair=tenant limits= rates=")])
    assert role.said[1:] == [
        "terms_changed: queue 'q' has the terms `fair=tenant limits= rates=` now"
    ]


def test_a_worker_without_terms_is_led_to_those_of_the_queue() -> None:
    consumer = make_consumer(concurrency=3)
    fetching = Hand(fetch(consumer))
    assert names(fetching.go()) == ["lease"]
    effect = fetching.go([Grant([], structure="fair= limits=* rates=", elsewhere=True)])
    assert names(effect) == ["lease_fair"]
    assert limit(effect) == 3  # with limits none ahead
    assert [text.partition(":")[0] for text in fetching.said] == ["terms_differ"]


def test_the_role_looks_on_while_jobs_are_unread_and_while_handlers_are_busy() -> None:
    consumer = make_consumer(fair="tenant")
    fair = consumer.leasing.fair
    assert fair is not None
    fetching, role = Hand(fetch(consumer)), Hand(line_up(consumer))
    assert isinstance(role.go(), Sleep)
    fetching.go()
    fetching.go([evolve(grant(consumer, 1), unread=True)])
    assert fair.unread
    assert lines_up(consumer)
    assert names(role.go()) == ["line_up"]
    assert names(role.go([True])) == ["line_up"]
    assert isinstance(role.go([False]), Sleep)
    role.now += 5  # a handler is still busy
    assert names(role.go()) == ["line_up"]
    assert isinstance(role.go([False]), Sleep)
    consumer.phase = Phase.DRAINING
    assert role.go() is None


def test_only_queues_with_terms_have_the_role() -> None:
    plain, fair = make_consumer(), make_consumer(fair="tenant")
    worker = Lifecycle(WorkerSettings(), [plain, fair])
    assert [
        (name, owner) for name, _, owner, _ in fair_roles(worker, [plain, fair], everywhere)
    ] == [("line_up", fair)]
    assert not lines_up(plain)
    assert list(line_up(plain)) == []


def test_with_limits_no_job_is_leased_ahead_and_with_fair_few() -> None:
    for options, most in (({}, 102), ({"fair": "tenant"}, 12), ({"limits": Limit(5)}, 2)):
        consumer = make_consumer(concurrency=2, **options)
        consumer.jobs.mean = 0.001
        assert limit(Hand(fetch(consumer)).go()) == most


@each(
    ("call", "most"), [(0.0, 2), (0.00051, 2 + 2), (0.00101, 2 + 4), (0.003, 2 + 10), (1.0, 2 + 10)]
)
def test_jobs_are_leased_ahead_for_the_time_of_two_calls(call: float, most: int) -> None:
    """Jobs for two calls keep the handlers busy. A quiet value waits for these jobs only, and for
    at most 5 ms."""
    consumer = make_consumer(concurrency=2, fair="tenant")
    consumer.jobs.mean = 0.001
    hand = Hand(fetch(consumer))
    for _ in range(50):
        consumer.leasing.available = True
        hand.go()
        hand.now += call
        assert isinstance(hand.go([grant(consumer)]), Sleep)
    assert consumer.room() == most


def free_at_once(
    jobs: int = 4, took: float = 0.008, *, ends: int = 4, **options: Any
) -> tuple[Hand, Consumer, Any]:
    """Let some of four handlers end together which took so many seconds, after a call that leased
    *jobs* for them."""
    consumer = make_consumer(**({"concurrency": 4, "fair": "tenant"} | options))
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go([grant(consumer, *range(1, jobs + 1))])
    for _ in range(ends):
        hand.run(consumer)
    consumer.jobs.mean = took
    if consumer.leasing.fair is not None:
        consumer.leasing.fair.call_s = 0.001
    consumer.leasing.available = True
    consumer.slot_freed()
    return hand, consumer, hand.go()


def test_handlers_that_are_free_at_once_begin_one_after_another() -> None:
    """Then each ends at its own moment, so that a job of a quiet value waits for one of them, and
    not for all."""
    hand, consumer, effect = free_at_once()
    assert (names(effect), limit(effect)) == (["complete", "lease_fair"], 1)
    assert hand.go([[True] * 4, grant(consumer, 5)]) == Sleep(pytest.approx(0.002))
    hand.now += 0.001
    assert hand.go() == Sleep(pytest.approx(0.001))  # woken by something else
    hand.now += 0.0011
    assert limit(hand.go()) == 1
    hand.now += 0.004
    assert limit(hand.go([grant(consumer, 6)])) == 2  # the call took the time of two handlers
    assert limit(hand.go([grant(consumer, 7, 8)])) == 1  # ahead of the handlers, as ever


def test_handlers_are_spread_in_a_twentieth_of_the_time() -> None:
    consumer = make_consumer(concurrency=4, fair="tenant")
    consumer.jobs.mean = 0.008
    consumer.leasing.backlog = True
    for now, asked in ((100.0, 1), (100.1, 3), (100.1, 9), (100.15, 9), (100.17, 1)):
        role = spread(consumer, 9)
        assert isinstance(next(role), Now)
        with pytest.raises(StopIteration) as end:
            role.send(now)
        assert end.value.value == asked


@each(
    ("change", "asked"),
    [
        ({"fair": None}, 4 + 25),
        ({"fair": None, "limits": Limit(9)}, 4),
        ({"took": 0.001}, 4 + 8),  # they end at all moments, as a call takes as long
        ({"ends": 1}, 1 + 1),
        ({"jobs": 3, "ends": 3}, 4 + 1),  # that was all: there is no backlog
        ({"took": 1.0}, 1),
    ],
)
def test_handlers_that_are_not_spread(change: dict[str, Any], asked: int) -> None:
    hand, consumer, effect = free_at_once(**change)
    assert limit(effect) == asked
    if change == {"took": 1.0}:  # they are, but within a moment
        assert hand.go([[True] * 4, grant(consumer, 5)]) == Sleep(pytest.approx(START_WITHIN_S / 4))


def test_terms_that_change_and_headers_that_no_job_has_are_logged() -> None:
    consumer = make_consumer(concurrency=500, fair="tenant")
    consumer.leasing.fair.known = consumer.leasing.fair.logged = True  # type: ignore[union-attr]
    hand = Hand(fetch(consumer))
    hand.go()
    hand.go(
        [evolve(grant(consumer, *range(1, JOBS_WITHOUT_KEY)), structure="fair=org limits= rates=")]
    )
    (changed,) = hand.said
    assert changed == "terms_changed: queue 'q' has the terms `fair=org limits= rates=` now"
    consumer.leasing.available = True
    hand.go()
    hand.go([evolve(grant(consumer, 1000), structure="fair=org limits= rates=")])
    assert [text.partition(":")[0] for text in hand.said[1:]] == ["key_unknown"]
    assert "'org'" in hand.said[1]


# -- without a worker ------------------------------------------------------------------------------


def answered(call: Any, *answers: Any) -> list[str]:
    """Answer a call with these replies, and return the names of its operations."""
    sent: list[str] = []
    rest, reply = list(answers), None
    while True:
        try:
            effect = call.send(reply)
        except StopIteration:
            return sent
        if isinstance(effect, Send):
            sent += names(effect)
            reply = [rest.pop(0)]
        elif isinstance(effect, Undoable):
            sent.append(effect.op.name)
            reply = rest.pop(0)
        else:
            reply = 100.0


def test_a_lease_by_hand_declares_first_and_looks_at_all_new_jobs() -> None:
    settings = QueueSettings(fair="tenant")
    held = leaser(Ops(Keys.of("q"), settings))
    assert isinstance(held, FairLeaser)
    call = held.lease(1, 0.0, None, False)
    answers = [
        Reclaimed(0),
        told(TENANT, again=True),
        told(TENANT),
        Grant([], unread=True),
        True,
        False,
    ]
    assert answered(call, *answers) == [
        "reclaim", "declare_terms", "declare_terms", "lease_fair", "line_up", "line_up",
    ]  # fmt: skip
    call = held.lease(1, 0.0, None, False)
    sent = answered(call, Grant([], unread=True), *[True] * LOOKS_AT_MOST)
    assert sent == ["lease_fair", *["line_up"] * LOOKS_AT_MOST]


def test_a_lease_by_hand_follows_the_terms_of_the_queue() -> None:
    call = leaser(Ops(Keys.of("q"))).lease(1, 0.0, None, False)
    assert answered(call, Reclaimed(0), Grant([], structure=TENANT, elsewhere=True), Grant([])) == [
        "reclaim", "lease", "lease_fair",
    ]  # fmt: skip
    call = leaser(Ops(Keys.of("q"), QueueSettings(fair="org"))).lease(1, 0.0, None, False)
    gone = Grant([], structure="", elsewhere=True)
    assert answered(call, Reclaimed(0), told(TENANT), gone, told(""), Grant([])) == [
        "reclaim", "declare_terms", "lease_fair", "declare_terms", "lease",
    ]  # fmt: skip


# -- shares ----------------------------------------------------------------------------------------


def test_shares_of_shards_are_joined() -> None:
    one, other = Share(("a",), 1, 2, 0.5, None, 3.0), Share(("a",), 2, 3, 0.1, 0.9, 4.0)
    assert joined([one, other]) == [Share(("a",), 3, 5, 0.5, 0.9, 7.0)]
    assert Share(("acme", None), 0, 0, None, None, 0.0).name == "acme/-"
    many = [Share((f"{at}",), 0, 0, None, None, float(at)) for at in range(20)]
    assert [share.name for share in joined(many)] == [f"{at}" for at in range(19, 9, -1)]
    late = [Share((f"{at}",), 0, 1, None, None, float(at), oldest=100.0 - at) for at in range(40)]
    busiest = [f"{at}" for at in range(39, 29, -1)]
    assert [share.name for share in joined([*late, *late])] == [
        *busiest,
        *(f"{at}" for at in range(10)),
    ]
    assert joined([late[5], evolve(late[5], oldest=None)])[0].oldest == 95.0


def test_the_steps_of_operators() -> None:
    ops = Ops(Keys.of("q"), QueueSettings(fair="tenant"))
    settings = QueueSettings(
        fair="org/user", weights={("acme", "ada"): 2.5}, limits=[Limit(9), Limit(5, key="org")]
    )
    call = redeclare([ops], settings)
    assert names(call.send(None)) == ["about"]
    known = {"rate": "(Rate(limit=5, per=1.0, key=None, burst=None, per_shard=False),)"}
    effect: Any = call.send([About(1.0, False, 1, 1, known)])
    mode, worker, structure, terms, path, weight = effect.ops[0].args
    assert (mode, worker, structure) == ("force", "", "fair=org/user limits=*,org rates=")
    offered = json.loads(terms)
    assert offered.pop("words").keys() == {"fair", "weights", "limits", "rate"}
    limits = [["", 9], ["org", 5]]
    assert offered == {
        "path": ["org", "user"],
        "keys": [],
        "limits": limits,
        "rates": [["", 200.0, 5]],
    }
    assert (path, weight) == (b"4:acme3:ada", "2.5")
    assert effect.ops[0].decode([2, "", 1]).again
    assert names(call.send([told("", again=True)])) == ["declare_terms"]
    with pytest.raises(StopIteration):
        call.send([told("")])
    ending: Any = redeclare([ops], QueueSettings()).send(None)
    assert list(ending.ops[0].args) == ["force", "", "", fair_ops.NONE]


def test_the_answer_of_shares() -> None:
    ops = Ops(Keys.of("q"), QueueSettings(fair="org/user"))
    call = shares([ops, ops])
    effect: Any = call.send(None)
    row = [b"4:acme-", b"1500", b"1", 2, 3, b"250", b"0", 0, b"", 0]
    found = effect.ops[0].decode([b"fair=org/user limits= rates=", b"1500", [row], b"", []])
    assert found == ([Share(("acme", None), 2, 3, 0.25, None, 1.5)], b"")
    with pytest.raises(StopIteration) as end:
        call.send([found, found])
    assert end.value.value == [Share(("acme", None), 4, 6, 0.25, None, 3.0)]


def test_the_pages_of_shares() -> None:
    """A value of two pages of a shard has its numbers once, and its longest age."""
    one, other = (Ops(Keys.of("q"), QueueSettings(fair="tenant")) for _ in range(2))
    page = [Share(("a",), 1, 2, None, None, 1.0, oldest=3.0)]
    call: Any = shares([one, other])
    assert [op.args[1] for op in call.send(None).ops] == ["-"] * 2
    assert [op.args[1] for op in call.send([([*page], b"[x!"), ([*page], b"")]).ops] == [b"[x!"]
    with pytest.raises(StopIteration) as end:
        call.send([([evolve(page[0], oldest=9.0)], b"")])
    assert end.value.value == [Share(("a",), 2, 4, None, None, 2.0, oldest=9.0)]


def test_the_pages_of_shares_have_an_end() -> None:
    call: Any = shares([Ops(Keys.of("q"), QueueSettings(fair="tenant"))])
    call.send(None)
    for _ in range(LOOKS_AT_MOST):
        assert call.send([([], b"[x!")])
    with pytest.raises(StopIteration):
        call.send([([], b"[x!")])


def test_slots_of_shards_are_joined() -> None:
    """The jobs of one key are in one shard, so the number of places is taken from that shard."""
    a, b = SlotView("a", 2, waits=False), SlotView("b", 1, waits=True)
    one = [LimitView(KEY, 3, (a,)), LimitView("customer", 2, (a, b))]
    other = [
        LimitView(KEY, 3, (b,)),
        LimitView("customer", 1, (b, SlotView("c", 2, waits=True)), more=True),
    ]
    found = joined_slots([*one, *other])
    assert found == [
        LimitView(KEY, 3, (a, b)),
        LimitView("customer", 3, (evolve(b, taken=2), SlotView("c", 2, waits=True), a), more=True),
    ]
    own = [LimitView(key, 3, (evolve(a, places=2),)) for key in (KEY, KEY, "customer", "customer")]
    assert [one.values[0].places for one in joined_slots(own)] == [2, 4]
    assert joined_slots([]) == []
