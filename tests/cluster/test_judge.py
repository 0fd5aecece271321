"""The judge of the storm on a cluster. Each of its rules finds its violation and no other."""

from __future__ import annotations

from collections.abc import Callable

from headrace import Counts
from tests.cluster.judge import Judge
from tests.support.facts import each


def done(judge: Judge, *names: str, counted: int | None = None) -> None:
    """Ask for two jobs that are acknowledged, run the named ones, and judge with this count."""
    judge.asks("q", ["a", "b"])
    judge.takes("q", ["a", "b"])
    for name in names:
        judge.ran("q", name)
    number = 2 if counted is None else counted
    judge.sentence("q", Counts(enqueued=number, completed=number))


def in_order(judge: Judge, *numbers: int) -> None:
    """Begin and end jobs of one key in order."""
    for number in numbers:
        judge.begins("q", "k", number)
        judge.ends("q", "k", number)


def side_by_side(judge: Judge) -> None:
    """Begin the next job of a key before one ends."""
    judge.begins("q", "k", 0)
    judge.begins("q", "k", 1)


def twice(judge: Judge) -> None:
    judge.won("q", "a")
    judge.won("q", "a")


WRONG: dict[str, tuple[str, Callable[[Judge], None]]] = {
    "one is not done": ("lost", lambda judge: done(judge, "a")),
    "one was never asked for": ("phantom", lambda judge: done(judge, "a", "b", "c")),
    "one is counted twice": ("twice", lambda judge: done(judge, "a", "b", counted=3)),
    "one is not counted": ("twice", lambda judge: done(judge, "a", "b", counted=1)),
    "two complete it": ("twice", twice),
    "counts that do not add up": (
        "law",
        lambda judge: judge.law("q", Counts(enqueued=2, completed=1)),
    ),
    "the later one first": ("order", lambda judge: in_order(judge, 0, 2)),
    "an earlier one again": ("order", lambda judge: in_order(judge, 0, 1, 0)),
    "two of a key at a time": ("order", side_by_side),
}


@each("case", WRONG)
def test_it_complains(case: str) -> None:
    judge, (complaint, happens) = Judge(), WRONG[case]
    happens(judge)
    assert list(judge.complaints) == [complaint]


def test_it_is_content() -> None:
    """A run may come again. An ordered job may do so until the next of its key has begun."""
    judge = Judge()
    done(judge, "a", "b", "a")
    in_order(judge, 0, 0, 1, 2, 2)
    judge.law("q", Counts(enqueued=2, completed=2))
    assert not judge.complaints


@each("case", WRONG)
def test_what_masters_lose_is_done_again(case: str) -> None:
    """With *exact* off, the judge accepts jobs that run twice and finds everything else."""
    judge, (complaint, happens) = Judge(exact=False), WRONG[case]
    happens(judge)
    assert list(judge.complaints) == ([] if complaint in ("twice", "order") else [complaint])
