"""The due times of recurring jobs. The tests cover intervals, cron, changes of time zones, and
missed ticks."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from headrace._model.timing import CATCH_UP_AT_MOST, MISSED_GRACE_MS, Timing, decide, missed_policy
from tests.support.facts import each

BERLIN = "Europe/Berlin"
NEW_YORK = "America/New_York"


def ms(text: str) -> int:
    """Return a time in ISO form, UTC."""
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


def ticks(cron: str, zone: str, start: str, count: int) -> list[str]:
    """Return the first *count* ticks after *start* in UTC, to the minute. Each is computed from the
    one before."""
    timing, moment, found = Timing.of(None, cron, zone), ms(start), []
    for _ in range(count):
        moment = timing.after(moment, 0)
        found.append(datetime.fromtimestamp(moment / 1000, UTC).strftime("%m-%d %H:%M"))
    return found


# -- what the user says ----------------------------------------------------------------------------


def test_how_it_is_stored() -> None:
    timings = [Timing.of(1.1, None, None), Timing.of(timedelta(hours=1), None, None)]
    timings += [
        Timing.of(None, " 0  9 * * mon-fri ", ZoneInfo(BERLIN)),
        Timing.of(None, "* * * * *", None),
    ]
    assert [str(timing) for timing in timings] == [
        "every 1100", "every 3600000", "cron Europe/Berlin 0 9 * * mon-fri", "cron UTC * * * * *",
    ]  # fmt: skip
    assert [Timing.parse(str(timing)) for timing in timings] == timings


@each(
    ("arguments", "error", "says"),
    [
        ((None, None, None), ValueError, "every= or cron="),
        ((1, "* * * * *", None), ValueError, "every= or cron="),
        ((0, None, None), ValueError, "every=0"),
        ((0.05, None, None), ValueError, "every=0.05"),
        ((-1, None, None), ValueError, "every=-1"),
        ((float("nan"), None, None), ValueError, "every=nan"),
        (("1", None, None), TypeError, "every must be seconds"),
        ((1, None, "UTC"), ValueError, "timezone: it is for cron="),
        ((None, 5, None), TypeError, "cron must be a str"),
        ((None, "", None), ValueError, "cron ''"),
        ((None, "* * * *", None), ValueError, "Wrong number of fields"),
        ((None, "60 * * * *", None), ValueError, "Bad minute"),
        ((None, "* * * * * * *", None), ValueError, "cron"),
        ((None, "0 0 30 2 *", None), ValueError, "cron '0 0 30 2 ?"),
        ((None, "* * * * *", "Europe/Atlantis"), ValueError, "timezone 'Europe/Atlantis'"),
        ((None, "* * * * *", "../etc/passwd"), ValueError, "timezone"),
        ((None, "* * * * *", ""), ValueError, "timezone ''"),
        ((None, "* * * * *", 5), TypeError, "timezone must be a name"),
    ],
)
def test_what_makes_no_timing(
    arguments: tuple[Any, Any, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says.replace("*", r"\*")):
        Timing.of(*arguments)


def test_what_is_no_policy() -> None:
    assert [missed_policy(value) for value in ("skip", "once", "all")] == ["skip", "once", "all"]
    with pytest.raises(ValueError, match="missed='never'"):
        missed_policy("never")
    with pytest.raises(TypeError, match="missed must be a str"):
        missed_policy(None)


# -- intervals -------------------------------------------------------------------------------------


def test_an_interval_does_not_drift() -> None:
    """The tick may be enqueued late."""
    timing = Timing.of(0.3, None, None)
    due, seen = 1000, []
    for late in (0, 7, 299, 1, 120):
        found, following = decide(timing, "once", due, due + late)
        seen += found
        due = following
    assert seen == [1000, 1300, 1600, 1900, 2200]
    assert timing.after(1000, 1000) == 1300
    assert timing.after(1299, 1000) == 1300
    assert timing.after(999, 1000) == 1000


def test_intervals_that_were_missed() -> None:
    timing = Timing.of(1, None, None)
    now = 1000 + 5_000_500
    assert timing.passed(1000, now) == [5_001_000]
    assert timing.passed(1000, now, CATCH_UP_AT_MOST) == list(range(4_002_000, 5_001_001, 1000))
    assert len(timing.passed(1000, now, CATCH_UP_AT_MOST)) == CATCH_UP_AT_MOST
    assert timing.passed(1000, 1000, CATCH_UP_AT_MOST) == [1000]


# -- cron, and clocks that change ------------------------------------------------------------------


def test_cron() -> None:
    assert ticks("30 9 * * 1-5", "UTC", "2026-01-02T10:00", 3) == [
        "01-05 09:30",
        "01-06 09:30",
        "01-07 09:30",
    ]
    assert ticks("0 0 29 2 *", "UTC", "2026-01-01T00:00", 1) == ["02-29 00:00"]
    assert ticks("*/20 * * * *", "UTC", "2026-01-01T00:00:00.001", 3) == [
        "01-01 00:20",
        "01-01 00:40",
        "01-01 01:00",
    ]
    seconds = Timing.of(None, "*/10 * * * * *", None)
    assert seconds.after(ms("2026-01-01T00:00:09.999"), 0) == ms("2026-01-01T00:00:10")
    assert seconds.after(ms("2026-01-01T00:00:10"), 0) == ms("2026-01-01T00:00:20")


def test_a_time_of_day_stays_what_it_is_there() -> None:
    """Nine in the morning stays nine in the morning, in summer and in winter."""
    assert ticks("0 9 * * *", BERLIN, "2026-03-28T00:00", 2) == ["03-28 08:00", "03-29 07:00"]
    assert ticks("0 9 * * *", BERLIN, "2026-10-24T00:00", 2) == ["10-24 07:00", "10-25 08:00"]
    assert ticks("0 9 * * *", NEW_YORK, "2026-03-07T00:00", 2) == ["03-07 14:00", "03-08 13:00"]


def test_clocks_go_forward() -> None:
    """Berlin has no time from 02:00 to 03:00 on 29 March 2026. A tick of that hour runs once, at
    03:00."""
    assert ticks("30 2 * * *", BERLIN, "2026-03-27T12:00", 3) == [
        "03-28 01:30",
        "03-29 01:00",
        "03-30 00:30",
    ]
    assert ticks("0,30 2 * * *", BERLIN, "2026-03-28T12:00", 2) == ["03-29 01:00", "03-30 00:00"]
    assert ticks("30 * * * *", BERLIN, "2026-03-29T00:00", 3) == [
        "03-29 00:30",
        "03-29 01:30",
        "03-29 02:30",
    ]
    # by real time: never that day
    assert ticks("*/30 2 * * *", BERLIN, "2026-03-28T12:00", 1) == ["03-30 00:00"]


def test_clocks_go_back() -> None:
    """Berlin has the time from 02:00 to 03:00 twice on 25 October 2026. A tick of that hour runs
    the first time only.
    """
    assert ticks("30 2 * * *", BERLIN, "2026-10-24T12:00", 2) == ["10-25 00:30", "10-26 01:30"]
    # asked in the second of the two
    assert ticks("30 2 * * *", BERLIN, "2026-10-25T01:10", 1) == ["10-26 01:30"]
    assert ticks("10 2 * * *", BERLIN, "2026-10-25T00:30", 1) == ["10-26 01:10"]
    assert ticks("30 * * * *", BERLIN, "2026-10-24T23:45", 3) == [
        "10-25 00:30",
        "10-25 01:30",
        "10-25 02:30",
    ]
    assert ticks("*/30 * * * *", BERLIN, "2026-10-25T00:00", 4)[-1] == "10-25 02:00"
    assert ticks("30 1 * * *", NEW_YORK, "2026-10-31T12:00", 2) == ["11-01 05:30", "11-02 06:30"]


@each("cron", ["30 2 * * *", "0,30 1-3 * * *", "15 * * * *", "*/7 * * * *", "0 0 1 * *"])
@each("zone", [BERLIN, NEW_YORK, "Australia/Lord_Howe", "UTC"])
def test_ticks_only_go_on(cron: str, zone: str) -> None:
    """The next tick is later than any given time, and the same one until it has passed."""
    timing = Timing.of(None, cron, zone)
    for day in ("2026-03-08", "2026-03-29", "2026-04-05", "2026-10-04", "2026-10-25", "2026-11-01"):
        start = ms(f"{day}T00:00") - 36_000_000
        nexts = [timing.after(start + minute * 60_000, 0) for minute in range(0, 24 * 60, 9)]
        assert all(tick > start + n * 9 * 60_000 for n, tick in enumerate(nexts))
        assert all(a <= b for a, b in pairwise(nexts))
        found = {tick for tick in nexts if tick <= start + 86_000_000}
        assert (
            not found
            or set(timing.passed(min(found), start + 86_000_000, CATCH_UP_AT_MOST)) >= found
        )


def test_cron_ticks_that_were_missed() -> None:
    timing = Timing.of(None, "0 * * * *", None)
    due, now = ms("2026-01-01T00:00"), ms("2026-01-03T00:30")
    hours = [due + 3_600_000 * n for n in range(49)]
    assert timing.passed(due, now) == hours[-1:]
    assert timing.passed(due, now, 3) == hours[-3:]
    assert timing.passed(due, now, CATCH_UP_AT_MOST) == hours
    assert timing.passed(due, due, CATCH_UP_AT_MOST) == [due]
    years = Timing.of(None, "0 0 1 1 *", None)
    assert years.passed(ms("2000-01-01T00:00"), now, 2) == [
        ms("2025-01-01T00:00"),
        ms("2026-01-01T00:00"),
    ]


def test_a_year_of_minutes_is_no_work() -> None:
    """Only the latest ticks are computed."""
    timing = Timing.of(None, "* * * * *", BERLIN)
    now = ms("2027-01-01T00:00:30")
    assert timing.passed(ms("2026-01-01T00:00"), now) == [ms("2027-01-01T00:00")]
    found = timing.passed(ms("2026-01-01T00:00"), now, CATCH_UP_AT_MOST)
    assert found == [now - 30_000 - 60_000 * n for n in range(CATCH_UP_AT_MOST)][::-1]


# -- what was missed -------------------------------------------------------------------------------


@each("missed", ["skip", "once", "all"])
def test_on_time(missed: str) -> None:
    """A tick that is a moment late is on time under every policy."""
    timing = Timing.of(3600, None, None)
    for late in (0, 1500, MISSED_GRACE_MS):
        assert decide(timing, missed, 5000, 5000 + late) == ([5000], 3_605_000)


def test_missed() -> None:
    timing = Timing.of(3600, None, None)
    hour = 3_600_000
    now = 3 * hour + MISSED_GRACE_MS + 1
    assert decide(timing, "skip", 0, now) == ([], 4 * hour)
    assert decide(timing, "once", 0, now) == ([3 * hour], 4 * hour)
    assert decide(timing, "all", 0, now) == ([0, hour, 2 * hour, 3 * hour], 4 * hour)
    # the last one is on time
    assert decide(timing, "skip", 0, 3 * hour + 5) == ([3 * hour], 4 * hour)
