"""The timeline of a job. Its bars stand at their times, and none claims more than is known."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace._model.state import Attempt
from headrace._model.steps import Step
from headrace._model.views.jobs import JobView
from headrace._model.views.texts import Payload
from headrace.console.timeline import Bar, Timeline, timeline
from tests.support.facts import each

NOW = 1100.0


def drawn(state: str, **more: Any) -> Timeline:
    fields: dict[str, Any] = {
        "id": "a",
        "queue": "q",
        "attempt": 1,
        "priority": 0,
        "enqueued_at": 1000.0,
        "headers": {},
        **more,
    }
    return timeline(JobView(state=state, payload=Payload("text", "x", 1), **fields), NOW)


def marks(bars: Sequence[Bar]) -> list[tuple[float, float]]:
    return [(mark.start, mark.width) for bar in bars for mark in bar.marks]


def told(one: Timeline) -> list[tuple[str, str, str, float | None]]:
    return [(bar.label, bar.state, bar.bound, bar.took) for bar in one.bars]


def test_attempts_on_one_axis() -> None:
    attempts = (
        Attempt(1, 1010.0, 1020.0, "w", "E", "first"),
        Attempt(2, 1050.0, 1100.0, "w", "E", "last"),
    )
    one = drawn("dead", attempt=2, attempts=attempts, since=1100.0, finished=1100.0, reason="last")
    assert told(one) == [
        ("Wait", "", "", 10.0), ("Attempt 1", "failed", "", 10.0), ("Attempt 2", "died", "", 50.0),
    ]  # fmt: skip
    assert marks(one.bars) == [(0, 10), (10, 10), (50, 50)]
    assert marks([one.whole]) == [(0, 100), (10, 10), (50, 50)]
    assert ([text for _, text, _ in one.ticks], one.unknown) == (
        ["00:16:40 UTC", "+30 s", "+1 min", "00:18:20"],
        0,
    )


def test_a_running_job_began_at_its_first_step_at_the_latest() -> None:
    """Its lease may have been renewed since its delivery."""
    step = Step("charge", "done", 1040.0, 1045.0, 1)
    assert told(drawn("leased", since=1090.0)) == [
        ("Wait", "", "≤", 90.0),
        ("Attempt 1", "running", "≥", 10.0),
    ]
    one = drawn("leased", since=1090.0, steps=(step,))
    assert told(one) == [("Wait", "", "≤", 40.0), ("Delivery 1", "running", "≥", 60.0)]
    assert [(bar.label, bar.took) for bar in one.steps] == [("charge", 5.0)]
    assert marks(one.steps) == [(40.0, 5.0)]
    later = drawn("leased", attempt=2, since=1090.0, steps=(step,))
    assert told(later) == [("Delivery 2", "running", "≥", 10.0)]
    assert later.unknown == 1


@each(
    ("state", "more", "bars"),
    [
        ("waiting", {}, [("Wait", "", "", 100.0)]),
        ("delayed", {"due": 1200.0}, [("Wait", "", "", 100.0)]),
        ("completed", {"finished": 1050.0}, [("Attempt 1", "completed", "", None)]),
        ("dead", {"finished": 1050.0}, [("Attempt 1", "died", "", None)]),
        ("cancelled", {"finished": 1050.0}, [("Wait", "", "", 50.0), ("Cancelled", "", "", None)]),
        (
            "delayed",
            {
                "due": 1130.0,
                "attempt": 2,
                "attempts": (Attempt(1, 1010.0, 1020.0, "w", None, "why"),),
            },
            [("Wait", "", "", 10.0), ("Attempt 1", "failed", "", 10.0), ("Delayed", "", "", 80.0)],
        ),
    ],
)
def test_each_state(state: str, more: dict[str, Any], bars: list[Any]) -> None:
    one = drawn(state, **more)
    assert told(one) == bars
    for start, width in marks(one.bars):
        assert 0 <= start <= start + width <= 100


def test_failed_attempts_stand_at_the_step_that_they_tried() -> None:
    attempts = (
        Attempt(1, 1010.0, 1030.0, "w", "E", "first"),
        Attempt(2, 1040.0, 1050.0, "w", suspended=True),
    )
    steps = (
        Step("look up", "done", 1010.0, 1020.0, 1),
        Step("draft", "done", 1040.0, 1050.0, 2),
        Step("approval", "waiting", 1050.0, None, 2, due=9000.0),
    )
    one = drawn("blocked", deliveries=2, attempts=attempts, steps=steps, suspended=True)
    found = {
        bar.label: [(mark.start, mark.colour, mark.hatched) for mark in bar.marks]
        for bar in one.steps
    }
    assert found == {
        "look up": [(10.0, "good", False)],
        "draft": [(40.0, "good", False), (20.0, "bad", False)],
        "approval": [(50.0, "warn", True)],
    }
    assert marks(one.steps[-1:]) == [(50.0, 50.0)]
    assert one.ticks[-1] == (100.0, "now", "end")


def test_many_steps_are_folded() -> None:
    steps = [Step(f"s{n}", "done", 1000.0 + n, 1001.0 + n, 1) for n in range(50)]
    steps[3] = Step("s3", "timed out", 1003.0, 1004.0, 1)
    one = drawn("leased", since=1000.0, steps=tuple(steps))
    assert [bar.label for bar in one.steps] == ["s3", *(f"s{n}" for n in range(30, 50))]
    assert len(one.folded) == 29
    assert drawn("leased", since=1000.0, steps=tuple(steps[:20])).folded == ()


def test_a_job_of_which_nothing_is_known() -> None:
    assert told(drawn("completed", attempt=0, enqueued_at=None)) == []
