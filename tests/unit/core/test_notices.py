"""What is told, and who is woken by it."""

from __future__ import annotations

import threading

from headrace import Event
from headrace._core.notices import Received, Waiter, Waitlist, events

CHANNEL = "headrace:{q}:q:events:completed"


def watch(board: Waitlist, *names: str) -> Waiter:
    found = Waiter(frozenset(names), threading.Event())
    board.add(found)
    return found


def said(*messages: str, state: str = "on") -> Received:
    return Received(state, [(CHANNEL, message.encode()) for message in messages])


def test_a_message_is_of_many_jobs() -> None:
    found = list(events("q", CHANNEL, b'{"at": 1500, "ids": ["a", "\xff"], "worker": "w"}'))
    assert found == [Event("completed", "q", "a", 1.5, "w"), Event("completed", "q", "\\xff", 1.5, "w")]


def test_those_are_woken_whom_it_concerns() -> None:
    board = Waitlist("q")
    one, both, other = watch(board, "a"), watch(board, "a", "b"), watch(board, "c")
    board.take(said('{"at": 1, "ids": ["b", "x"]}', '{"at": 1, "ids": ["a"]}'))
    assert [w.wake.is_set() for w in (one, both, other)] == [True, True, False]
    assert board.read(both) == ({"a", "b"}, False)
    assert not both.wake.is_set()
    assert board.read(both) == (set(), False)
    assert board.read(one) == ({"a"}, False)


def test_all_have_ended_when_the_queue_is_deleted() -> None:
    board = Waitlist("q")
    one = watch(board, "a", "b")
    board.take(said('{"at": 1}'))
    assert board.read(one) == ({"a", "b"}, False)


def test_all_look_when_something_may_have_been_missed() -> None:
    board = Waitlist("q")
    one = watch(board, "a")
    for state, sound in (("anew", True), ("cut", False), ("refused", False)):
        board.take(said(state=state))
        assert board.sound is sound
        assert one.wake.is_set()
        assert board.read(one) == (set(), True)
    board.take(said())
    assert not one.wake.is_set()


def test_who_looks_anyway_need_not_be_told_to() -> None:
    """But an end that was told is not forgotten."""
    board = Waitlist("q")
    one, other = watch(board, "a"), watch(board, "b")
    board.take(said('{"at": 1, "ids": ["b"]}', state="anew"))
    board.looked(one)
    board.looked(other)
    assert (one.wake.is_set(), other.wake.is_set()) == (False, True)
    assert board.read(other) == ({"b"}, False)


def test_nobody_is_kept() -> None:
    board = Waitlist("q")
    one, other = watch(board, "a", "b"), watch(board, "a")
    board.remove(one)
    assert board.waiters == {"a": [other]}
    board.remove(other)
    board.remove(other)
    assert board.waiters == {}
