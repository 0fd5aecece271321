"""A primary behind Sentinel that is killed, replaced by hand, or frozen during work. Clients leave
it at once.

Each takes no more writes before that, until its replica has everything: so nothing is lost by the
replication, and what is lost nevertheless was written to a server that was no longer the primary.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import pytest

from headrace._net.base import sentinel
from headrace.errors import HeadraceError
from tests.cluster.load import Load
from tests.cluster.mutants import SENTINEL
from tests.cluster.sentinels import Sentinels
from tests.support.awaiting import until
from tests.support.planted import plant
from tests.support.servers import binaries

pytestmark = pytest.mark.ci

LATE_S = 2.0  # seconds for which the news of another primary is held up
# seconds: Sentinel takes two or three, of which one is its down-after; without it a socket's ten
# pass
STILL_S = 8.0


@pytest.fixture
def sentinels() -> Iterator[Sentinels]:
    """A primary, its replica, and three Sentinels, of the newest server."""
    with Sentinels(binaries()[0]) as sentinels:
        yield sentinels


def killed(sentinels: Sentinels) -> None:
    sentinels.primary.kill()


def heard(sentinels: Sentinels) -> None:
    """Wait until this process knows the primary. Writes that a former one acknowledged before are
    lost, because no client can know better.
    """
    place = sentinels.primary.place
    until(
        lambda: any(watch.primary == place for watch in list(sentinel._WATCHES.values())),
        "word of another primary",
    )


def replaced(sentinels: Sentinels) -> None:
    """The former primary takes writes again, and is demoted seconds later."""
    former = sentinels.primary
    sentinels.failover()
    heard(sentinels)
    former.ask("CLIENT", "UNPAUSE")


def frozen(sentinels: Sentinels) -> None:
    """Freeze the primary until it is replaced, then wake it. It would run the commands that were
    sent to it."""
    former = sentinels.primary
    former.suspend()
    until(lambda: sentinels.primary is not former, "another primary")
    heard(sentinels)
    former.wake()
    former.ask("CLIENT", "UNPAUSE")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "tasks"])
@pytest.mark.parametrize("fault", [killed, replaced, frozen], ids=lambda fault: fault.__name__)
def test_another_primary(
    sentinels: Sentinels, fault: Callable[[Sentinels], None], kind: str
) -> None:
    former = sentinels.primary
    (replica,) = (node for node in sentinels.nodes if node is not former)
    with Load(sentinels.client, ["q"], kind) as load:
        load.goes_on(20)
        former.hand_over(replica)
        fault(sentinels)
        load.goes_on(20)
    assert load.stood_still < STILL_S


@pytest.mark.slow
def test_a_primary_that_is_heard_of_late(
    sentinels: Sentinels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that listens to a Sentinel is late, as on a busy machine."""
    original = sentinel.Watch._take

    def late(watch: sentinel.Watch, place: sentinel.Place, report: sentinel.Report | None) -> None:
        if report is not None and watch.primary not in (None, report.primary):
            time.sleep(LATE_S)
        original(watch, place, report)

    monkeypatch.setattr(sentinel.Watch, "_take", late)
    test_another_primary(sentinels, replaced, "tasks")


@pytest.mark.sampled
@pytest.mark.slow
@pytest.mark.parametrize("mutant", SENTINEL)
def test_planted_bug(mutant: str, sentinels: Sentinels, monkeypatch: pytest.MonkeyPatch) -> None:
    """One of these tests finds the bug."""
    bug = SENTINEL[mutant]
    plant(monkeypatch, bug.module, bug.old, bug.new)
    # seconds to wait for a condition that never holds
    monkeypatch.setattr(until, "__defaults__", ("", STILL_S))
    check = globals()[bug.found_by]
    with pytest.raises((AssertionError, HeadraceError)):
        check(sentinels, frozen, "threads")
