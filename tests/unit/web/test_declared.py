"""Declared options on screens, in words and not as Python prints them."""

from __future__ import annotations

import re
from typing import Any

from headrace import Limit, Rate
from headrace._model.settings import AGREED, QueueSettings
from headrace.console.texts import declared, signal_data
from tests.support.facts import each

OPTIONS: dict[str, tuple[Any, str]] = {
    "max_attempts": (None, "no limit"),
    "priorities": (3, "3"),
    "ageing": (90.0, "1.5 min"),
    "history": (100, "100"),
    "trends": (True, "yes"),
    "max_waiting": (1000, "1000"),
    "full": ("block", "block"),
    "unique_for": (3600.0, "1 h"),
    "ordered": (True, "yes"),
    "fair": ("org/user", "org/user"),
    "weights": ({"big": 2.0}, "big: 2"),
    "limits": ((Limit(5), Limit(3, key="tenant")), "5, 3 of tenant"),
}
WITH: dict[str, dict[str, Any]] = {
    "ageing": {"priorities": 2},
    "full": {"max_waiting": 5},
    "weights": {"fair": "org"},
}
RATES = {
    "5 a second for each tenant": Rate(5, key="tenant"),
    "1,000 a minute, 7 at once": Rate(1000, 60, burst=7),
    "2 in 10 s for each it's": Rate(2, 10, key="it's"),
    "100 an hour, over all shards": Rate(100, 3600, per_shard=True),
    "1 a day for each job key": Rate(1, 86400, key="headrace-key"),
    "5 a second for each a, 9 a second": (Rate(5, key="a"), Rate(9)),
}


def words(option: str, value: Any) -> str:
    said = QueueSettings(**{option: value}, **WITH.get(option, {})).declared()
    return declared(option, said[option])


def test_every_option_that_is_declared_is_here() -> None:
    assert OPTIONS.keys() | {"rate"} >= set(AGREED)


@each("option", OPTIONS)
def test_an_option_is_shown_in_words(option: str) -> None:
    value, expected = OPTIONS[option]
    assert words(option, value) == expected
    assert not re.search(r"[='\"()]|None|True|False|\.0\b", words(option, value))


@each("expected", RATES)
def test_a_rate_is_shown_in_words(expected: str) -> None:
    assert words("rate", RATES[expected]) == expected


def test_what_is_cut_or_foreign_is_shown() -> None:
    assert declared("rate", str((Rate(5), Rate(9, key="x" * 90)))[:120]) == "5 a second, …"
    assert declared("rate", "nonsense") == "…"
    assert declared("history_ttl", "604800") == "7 d"
    assert declared("ageing", "soon") == "soon"


def test_the_data_of_a_signal_is_json_or_text() -> None:
    assert (signal_data("[1]"), signal_data("yes")) == ([1], "yes")
