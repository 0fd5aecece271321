"""Jumps of a server's clock, as a client sees them."""

from __future__ import annotations

import pytest

from headrace._telemetry.worker import ServerClock
from tests.support.facts import each


@each("jump", [-600.0, -1.5, 1.5, 600.0])
def test_a_jump_is_told_once(jump: float) -> None:
    clock = ServerClock()
    told = [
        clock.jump(1000.0 + at + (jump if at > 2 else 0.0), 0.01, ours=float(at)) for at in range(6)
    ]
    assert told == [0.0, 0.0, 0.0, pytest.approx(jump, abs=0.02), 0.0, 0.0]


def test_a_reply_that_took_long_is_none() -> None:
    """The server read its clock at some time between the request and the reply."""
    clock = ServerClock()
    assert [
        clock.jump(1000.0, 0.0, ours=0.0),
        clock.jump(1001.0, 45.0, ours=46.0),
        clock.jump(1050.0, 0.0, ours=50.0),
    ] == [0, 0, 0]


def test_clocks_that_drift() -> None:
    clock = ServerClock()
    assert not any(
        clock.jump(1000.0 + 3600.0 * at * 1.0005, 0.0, ours=3600.0 * at) for at in range(9)
    )


def test_replies_that_overtake_each_other_tell_no_second_jump() -> None:
    """An earlier reply that arrives late may be from before the jump that the other has shown."""
    clock = ServerClock()
    assert clock.jump(1000.0, 0.01, ours=0.0) == 0
    assert clock.jump(1021.0, 0.01, ours=1.0) == pytest.approx(20, abs=0.02)
    # the server said so before, and it is read after
    assert clock.jump(1000.95, 0.06, ours=1.01) == 0
    assert clock.jump(1021.1, 0.01, ours=1.1) == 0
