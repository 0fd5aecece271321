"""The terms of a queue. The tests check, compare and show them, and turn arguments of tasks into
headers."""

from __future__ import annotations

from typing import Any

import pytest

from headrace import ConfigurationError, Limit, NewJob, Rate, Tasks
from headrace._model.job import Job
from headrace._model.settings import QueueSettings
from headrace._model.terms import WEIGHTS_AT_MOST, Terms, parameters
from headrace._protocol.features.fair import numbers
from headrace._protocol.keys import Keys
from headrace._protocol.queue_ops import Ops
from tests.support.facts import each


def terms(**options: Any) -> Terms:
    made = QueueSettings(**options).terms
    assert made is not None
    return made


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"fair": ""}, "fair: header name ''"),
    ({"fair": "a/b/c"}, "give one header, or two as in 'org/user'"),
    ({"fair": "a/"}, "fair: header name ''"),
    ({"fair": "a/a"}, "give two headers that differ"),
    ({"fair": "data"}, "fair: header name 'data'"),
    ({"fair": "headrace-cost"}, "reserved, except 'headrace-key'"),
    ({"fair": "a", "weights": {"x": 0}}, "weights: 'x'=0: give a number from 0.001 to 1,000,000"),
    ({"fair": "a", "weights": {"x": -1.0}}, "weights: 'x'=-1.0"),
    ({"fair": "a", "weights": {"x": float("nan")}}, "weights: 'x'=nan"),
    ({"fair": "a", "weights": {"x": float("inf")}}, "weights: 'x'=inf"),
    ({"fair": "a", "weights": {"x": 10**400}}, "weights: 'x'=1000"),
    ({"fair": "a", "weights": {("x", "y"): 2}}, "with fair='a' give a value"),
    ({"fair": "a/b", "weights": {(): 2}}, "with fair='a/b' give a value, or a tuple of two values"),
    ({"fair": "a", "weights": {"x": 2, ("x",): 2}}, r"weights: \('x',\) is given twice"),
    ({"weights": {"x": 2}}, "weights: they are of the values of fair=, which is missing"),
    ({"fair": "a", "weights": {str(at): 1 for at in range(WEIGHTS_AT_MOST + 1)}}, "at most 10,000"),
    ({"limits": [Limit(5), Limit(6)]}, "limits: 5 and 6 for the whole queue"),
    ({"limits": [Limit(5, key="a"), Limit(6, key="a")]}, "limits: 5 and 6 for key='a'"),
    ({"limits": Limit(5), "shards": 4}, "limits: a script reaches one of 4 shards: give Limit"),
    ({"limits": Limit(5, key="a"), "shards": 4}, "or per_shard=True: each shard hands out 1/4"),
]


@each(("options", "error"), WRONG)
def test_bad_terms_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ConfigurationError, match=error):
        QueueSettings(**options)


@each(
    ("options", "error"),
    [
        ({"fair": 5}, "fair must be the name of a header, such as 'tenant'"),
        ({"fair": "a", "weights": [("x", 1)]}, "weights must map values to numbers"),
        ({"fair": "a", "weights": {5: 1}}, "weights: 5 must be a str, or a tuple of two"),
        ({"fair": "a", "weights": {"x": "3"}}, "weights: 'x' must be a number, not str"),
        ({"fair": "a", "weights": {"x": True}}, "weights: 'x' must be a number, not bool"),
        ({"limits": 5}, r"limits must be a Limit\(...\) or a list of them"),
        ({"limits": [5]}, "5 is none"),
    ],
)
def test_terms_of_other_types_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(TypeError, match=error):
        QueueSettings(**options)


@each("limit", [0, -1, 2**60])
def test_a_limit_below_one_is_refused(limit: int) -> None:
    with pytest.raises(ConfigurationError, match="give at least 1; pause the queue"):
        Limit(limit)


def test_a_limit_has_a_number_and_a_header() -> None:
    wrong: Any = (True, 1.5)
    for limit in wrong:
        with pytest.raises(TypeError, match="limit must be an int"):
            Limit(limit)
    with pytest.raises(TypeError, match="key must be the name of a header"):
        Limit(5, key=wrong)
    with pytest.raises(ConfigurationError, match="reserved"):
        Limit(5, key="headrace-priority")
    with pytest.raises(
        ConfigurationError, match="each: its values are of the header key=, which is missing"
    ):
        Limit(5, each={"a": 1})
    for limits, error in (
        ([("a", 1)], "each must map values to numbers"),
        ({5: 1}, "each: 5 must be a str"),
    ):
        with pytest.raises(TypeError, match=error):
            Limit(5, key="a", each=limits)  # type: ignore[arg-type]
    for value, error in (("3", "not str"), (True, "not bool")):
        with pytest.raises(TypeError, match=f"each: 'x' must be an int, {error}"):
            Limit(5, key="a", each={"x": value})  # type: ignore[dict-item]
    for big, error in (
        ({"x": 0}, "each: 'x'=0: give at least 1"),
        ({"é" * 251: 1}, "give at most 500 bytes"),
    ):
        with pytest.raises(ConfigurationError, match=error):
            Limit(5, key="a", each=big)
    with pytest.raises(ConfigurationError, match="each: 10,001 of them; give at most 10,000"):
        Limit(5, key="a", each={str(at): 1 for at in range(WEIGHTS_AT_MOST + 1)})
    assert hash(Limit(5, key="a", each={"é" * 250: 1})) == hash(Limit(5, key="a"))
    assert Limit(5, key="a", per_shard=True, each={"x": 9}).slots(0.25, "x") == 3
    assert Limit(5, key="headrace-key").slots(0.25) == 5
    assert Limit(5, per_shard=True).slots(0.25) == 2


def test_the_structure_is_equal_for_equal_terms() -> None:
    one = terms(
        fair="org/user",
        limits=[Limit(5, key="org"), Limit(50)],
        rate=[Rate(5, key="user"), Rate(9)],
    )
    other = terms(
        fair="org/user",
        limits=[Limit(9), Limit(1, key="org")],
        rate=Rate(1, key="user"),
        weights={"x": 2},
    )
    assert one.structure == other.structure == "fair=org/user limits=*,org rates=user"
    assert terms(limits=Limit(1, key="a, b=c")).structure == "fair= limits=a%2C%20b%3Dc rates="
    assert terms(limits=Limit(1)).names == ()
    assert one.names == ("org", "user")
    assert QueueSettings(rate=Rate(5, key="a")).terms is None


def test_terms_are_declared_in_words() -> None:
    some = QueueSettings(
        fair="org/user", weights={"x": 2, ("x", "y"): 0.5}, limits=[Limit(50), Limit(5, key="org")]
    )
    assert some.declared() == {
        "fair": "org/user",
        "weights": "x: 2, x/y: 0.5",
        "limits": "50, 5 of org",
    }
    own = QueueSettings(limits=[Limit(5, key="org", each={"x": 2, "a": 7})])
    assert own.declared() == {"limits": "5 of org", "each": "7 of org a, 2 of org x"}
    assert own.terms is not None
    assert own.terms.structure == terms(limits=Limit(1, key="org")).structure
    assert numbers(own.terms, 1.0) == [b"e3:org1:x", "2", b"e3:org1:a", "7"]
    many = QueueSettings(fair="a", weights={str(at): 2 for at in range(1000)}).declared()["weights"]
    other = QueueSettings(fair="a", weights={str(at): 3 for at in range(1000)}).declared()[
        "weights"
    ]
    assert many.startswith("1000 weights (")
    assert many != other


@each("cost", [0, -1, float("nan"), float("inf"), 2e6])
def test_a_cost_is_a_positive_number(cost: float) -> None:
    with pytest.raises(ConfigurationError, match=r"cost=.* give a number from 0\.001 to 1,000,000"):
        Ops(Keys.of("q")).item(NewJob(b"x", cost=cost))


def test_a_cost_travels_in_a_header() -> None:
    wrong: Any = "4"
    with pytest.raises(TypeError, match="cost must be a number, not str"):
        Ops(Keys.of("q")).item(NewJob(b"x", cost=wrong))
    headers = {"headrace-cost": "9"}  # copied from another job
    item = Ops(Keys.of("q")).item(NewJob(b"x", headers=headers, cost=4))
    assert item == ("", "", ["data", b"x", "headrace-cost", "4"])


@each(
    ("header", "cost"),
    [("4", 4.0), ("0", None), ("-1", None), ("nan", None), ("inf", None), ("much", None)],
)
def test_a_foreign_cost_that_is_no_positive_number_is_none(header: str, cost: float | None) -> None:
    assert Job("i", b"x", "q", {"headrace-cost": header}).cost == cost
    assert Job("i", b"x", "q").cost is None


def test_arguments_of_tasks_become_headers() -> None:
    tasks = Tasks("calls", fair="org/user", limits=Limit(5, key="flag"))

    @tasks.task
    def call(org: str, user: int | None = None, *, flag: bool = True) -> None: ...

    assert call.new("acme").headers == {"kind": "call", "org": "acme", "flag": "true"}
    assert call.new("acme", 7, flag=False).headers == {
        "kind": "call",
        "org": "acme",
        "user": "7",
        "flag": "false",
    }
    given = call.options(headers={"org": "other"}, cost=2.5).new("acme")
    assert (given.headers or {})["org"] == "other"
    assert given.cost == 2.5


def test_an_argument_that_is_no_text_is_refused() -> None:
    tasks = Tasks("calls", limits=Limit(5, key="users"))

    @tasks.task
    def call(users: list[str]) -> None: ...

    with pytest.raises(
        TypeError, match=r"task 'call': users: .* must be text, a number or a bool, not list"
    ):
        call.new(["ada"])
    assert dict(parameters(("a", "b", "c"), {"a": None, "b": 1.5})) == {"b": "1.5"}


def test_a_recurring_task_keeps_its_cost_and_headers() -> None:
    tasks = Tasks("calls", fair="org")

    @tasks.cron(every=60)
    @tasks.task
    def call(org: str = "acme") -> None: ...

    (recurring,) = tasks._recurring
    assert recurring.job.headers == {"kind": "call", "org": "acme"}
