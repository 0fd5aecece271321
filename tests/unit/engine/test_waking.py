"""The events that wake the threads of a worker's roles."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace._engine.threads import Wakeup
from tests.support.awaiting import PATIENCE


@pytest.fixture
def restless() -> Iterator[None]:
    """Let threads take turns after nearly each step."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("restless")
def test_a_bell_that_many_ring_is_heard() -> None:
    """The sleeper sees each item that a thread added before it set the bell."""
    bell, said, began = Wakeup(), list[int](), time.monotonic()

    def ring() -> None:
        for number in range(1000):
            said.append(number)
            bell.set()

    with ThreadPoolExecutor(4) as threads:
        ringing = [threads.submit(ring) for _ in range(4)]
        while len(said) < 4000:
            bell.sleep(PATIENCE)
    assert not [one.result() for one in ringing if one.exception()]
    assert time.monotonic() - began < PATIENCE


def test_to_ring_a_bell_at_the_same_moment_is_no_error() -> None:
    """Another thread sets the event between the look at the lock and its release."""

    class Late:
        def locked(self) -> bool:
            return True

        def release(self) -> None:
            lock.release()

    bell: Any = Wakeup()
    lock, bell._lock = bell._lock, Late()
    bell.set()
    bell.set()
    assert not lock.locked()


def test_a_bell_that_was_rung_before_is_heard_once() -> None:
    bell = Wakeup()
    bell.set()
    bell.set()
    began = time.monotonic()
    bell.sleep(PATIENCE)
    assert time.monotonic() - began < PATIENCE
    bell.sleep(-1.0)  # it is not set any more, and no time is left
    bell.sleep(0.02)
    assert time.monotonic() - began >= 0.02
