"""The pages of the benches are made of the stored figures. Each peer is known wherever one is
named."""

from __future__ import annotations

import json
import threading
from typing import Any

from attrs import evolve

from bench import compare, growth, loss
from bench.growth import Span
from bench.peers import PEERS, SETTINGS, Seen
from tests.support.facts import each

SPAN = Span(processes=[1, 2], connections=100, commands=60.0, server=0.01, workers=0.02)


def kept(name: str) -> Any:
    return json.loads((growth.ROOT / "bench" / "results" / name).read_text("utf-8"))


def test_the_pages_are_of_the_kept_figures() -> None:
    assert growth.page(kept("growth.json")) == growth.PAGE.read_text("utf-8")
    assert compare.page(kept("compare.json")) == compare.PAGE.read_text("utf-8")
    assert compare.picture(kept("compare.json")) == compare.PICTURE.read_text("utf-8")
    assert loss.page(kept("loss.json")) == loss.PAGE.read_text("utf-8")


def test_the_page_on_loss_has_the_kept_figures() -> None:
    """Each row of the bench that lost or doubled jobs is on the page, and all others are zero."""
    page = loss.ROOT / "docs" / "explanation" / "what-can-be-lost.md"
    told = page.read_text("utf-8")
    rows = kept("loss.json")["rows"]
    assert len(rows) == len(loss.cases())
    for row in rows:
        numbers = loss.row(row, 1.0).split(" | ")
        lost, doubled = numbers[4], numbers[6]
        assert f"| {lost} | {doubled} |" in told, row
    lines = [line for line in told.splitlines() if line.startswith("| ")][2:]
    assert sum("| 0 | 0 | 0 |" not in line for line in lines) == sum(
        bool(row["lost"] or row["completed_twice"]) for row in rows
    )


def test_each_peer_says_how_it_is_set_up() -> None:
    assert SETTINGS.keys() == PEERS.keys()
    named = {
        *compare.PACKAGES,
        *compare.BULK,
        *compare.BY_TCP,
        *compare.NEWER,
        *growth.MANY,
        *growth.NEW,
    }
    assert named <= PEERS.keys()


def test_what_is_left_out_is_said() -> None:
    one = {
        "server": "s", "python": "3", "cores": 2, "commit": "c", "load": [0.1, 0.2],
        "rows": {"a": {"1000": "5", "10": "4"}, "b": {"10": "3", "1000": None}, "c": {"10": None, "1000": None}},
        "left_out": {"it fails": {"b": ["1,000"], "c": ["10", "1,000"]}},
    }  # fmt: skip
    told = growth.page({"axes": {"queues": one}})
    assert "| | 10 | 1,000 |\n|---|---|---|\n| a | 4 | 5 |\n| b | 3 | – |\n\n" in told
    assert "- Left out, as it fails: b (1,000); c." in told


def test_a_worker_runs_on_while_it_says_what_it_has_run() -> None:
    seen, ended = Seen(), threading.Event()
    seen.counts = dict.fromkeys(range(1_000_000), 1)

    def work() -> None:
        number = 1_000_000
        while not ended.is_set():
            seen.run(f"{number}:0.0:")
            number += 1

    thread = threading.Thread(target=work)
    thread.start()
    try:
        told = [seen.tell(2000) for _ in range(3)]
    finally:
        ended.set()
        thread.join()
    assert 0 < told[0]["ran"] < told[-1]["ran"]
    assert all(one["lost"] == one["doubled"] == 0 for one in told)


@each(
    ("other", "alike"),
    [
        ({}, True),
        ({"commands": 45.0}, True),  # what comes every ten seconds
        ({"commands": 30.0}, False),
        ({"workers": 0.2}, False),  # some still start
        ({"connections": 97}, False),
        ({"processes": [1, 2, 3]}, False),
    ],
)
def test_workers_are_at_rest_when_two_spans_are_alike(other: dict[str, Any], alike: bool) -> None:
    assert SPAN.alike(evolve(SPAN, **other)) is alike
    assert evolve(SPAN, **other).alike(SPAN) is alike


def test_a_job_that_ran_twice_is_counted() -> None:
    seen = Seen()
    for number in (0, 1, 1):
        seen.run(f"{number}:0.0:")
    told = seen.tell(4)
    assert (told["ran"], told["lost"], told["doubled"]) == (3, 2, 1)
