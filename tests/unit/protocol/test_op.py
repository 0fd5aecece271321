"""An operation on the wire, and the scripts as they are sent."""

from __future__ import annotations

import hashlib
import subprocess
import sys

import attrs
import pytest

from headrace._model.job import Claim, Job
from headrace._protocol.keys import Keys
from headrace._protocol.limits import CLAIMS_PER_SCRIPT
from headrace._protocol.op import FEW, Op, pack
from headrace._protocol.queue_ops import Ops
from headrace._protocol.script import Script, script
from tests.support.facts import each

OPS = Ops(Keys.of("q"))
PREFIX = "headrace:{q}:q:"
CLAIM = Claim(Job("1-0", b"x", "q"), "w", "1-0", 3, 3)
HELD = ("held", "slots", "settled", "stopped")


def test_a_recorded_script_gets_its_lane_and_its_call() -> None:
    op = OPS.release([CLAIM])
    source = op.script.source
    parts = ("jobs", "wake", "stats", "leases", "released", "limited", "events", "deaths", *HELD)
    keys = [PREFIX + part for part in parts]
    assert op.wire() == ("EVAL", source, 13, PREFIX + "lane:-", *keys, "", "w", 0, "1-0", 3)
    expected = ("EVALSHA", op.script.sha, 13, PREFIX + "lane:abc", *keys, "7", "w", 0, "1-0", 3)
    assert op.wire("EVALSHA", "abc", "7") == expected


def test_another_script_gets_neither() -> None:
    op = OPS.leave("w")
    parts = (
        "jobs",
        "wake",
        "stats",
        "leases",
        "released",
        "workers",
        "registered",
        "facts",
        "events",
        "deaths",
        *HELD,
    )
    keys = [PREFIX + part for part in parts]
    assert op.wire() == ("EVAL", op.script.source, 14, *keys, "w", CLAIMS_PER_SCRIPT, 0)
    assert op.wire("EVALSHA", "abc", "7") == (
        "EVALSHA",
        op.script.sha,
        14,
        *keys,
        "w",
        CLAIMS_PER_SCRIPT,
        0,
    )


INTERRUPTED = """
import signal
from headrace._protocol.op import pack

def interrupt(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, interrupt)
interrupted = 0
for number in range(60):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0005 * (1 + number % 7))
        pack((1234567,) * 100_000)
    except KeyboardInterrupt:
        interrupted += 1
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
print(interrupted)
"""


@pytest.mark.slow
def test_ctrl_c_while_a_command_is_packed() -> None:
    """The client raises the exception. With hiredis, a number whose `repr` is interrupted would
    crash the process."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 0


def test_a_script_is_its_file_with_its_fragments() -> None:
    found = script("release")
    assert found.sha == hashlib.sha1(found.source.encode()).hexdigest()
    assert "-- @" not in found.source
    assert "local function finish(" in found.source
    assert found.recorded
    assert not script("leave").recorded
    assert script("release") is found  # read once


def test_a_script_that_is_not_there() -> None:
    with pytest.raises(FileNotFoundError):
        script("nothing")


@each("number", [0, 1, FEW, FEW + 1, 1000])
@each("early", [False, True])
def test_few_arguments_are_packed_as_many_are(number: int, early: bool) -> None:
    op = Op(
        "o",
        script("release"),
        ["k", "l"],
        ["ä", b"\r\n", 5, *range(number)][:number],
        lambda reply: reply,
        "lane:",
    )
    if early:
        assert op.body is op.body
    assert op.packed("EVALSHA", "abc", "7") == pack(op.wire("EVALSHA", "abc", "7"))


def test_an_operation_is_a_value() -> None:
    op = Op("o", Script("o", "return 1", "0" * 40), ["k"], ["a", b"bc", 5], lambda reply: reply)
    assert op.size == 3
    assert op.wire() == ("EVAL", "return 1", 1, "k", "a", b"bc", 5)
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        op.name = "other"  # type: ignore[misc]
