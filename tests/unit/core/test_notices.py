"""Notices of a worker, and the roles that each notice wakes."""

from __future__ import annotations

import threading

from headrace import Event
from headrace._core.notices import MESSAGES_AT_MOST, Inbox, Received, Waiter, Waitlist, events
from headrace._model.event import ENDS

CHANNEL = "headrace:{q}:q:events:completed"


def watch(waitlist: Waitlist, *names: str) -> Waiter:
    found = Waiter(frozenset(names), threading.Event())
    waitlist.add(found)
    return found


def said(*messages: str, state: str = "on") -> Received:
    return Received(state, [(CHANNEL, message.encode()) for message in messages])


def test_a_message_is_of_many_jobs() -> None:
    found = list(events("q", CHANNEL, b'{"at": 1500, "ids": ["a", "\xff"], "worker": "w"}'))
    assert found == [
        Event("completed", "q", "a", 1.5, "w"),
        Event("completed", "q", "\\xff", 1.5, "w"),
    ]


def test_those_are_woken_whom_it_concerns() -> None:
    waitlist = Waitlist("q")
    one, both, other = watch(waitlist, "a"), watch(waitlist, "a", "b"), watch(waitlist, "c")
    waitlist.take(said('{"at": 1, "ids": ["b", "x"]}', '{"at": 1, "ids": ["a"]}'))
    assert [w.wake.is_set() for w in (one, both, other)] == [True, True, False]
    assert ends(waitlist, both) == ({"a", "b"}, False)
    assert not both.wake.is_set()
    assert ends(waitlist, both) == (set(), False)
    assert ends(waitlist, one) == ({"a"}, False)


def test_all_have_ended_when_the_queue_is_deleted() -> None:
    waitlist = Waitlist("q")
    one = watch(waitlist, "a", "b")
    waitlist.take(said('{"at": 1}'))
    assert ends(waitlist, one) == ({"a", "b"}, False)


def ends(waitlist: Waitlist, waiter: Waiter) -> tuple[set[str], bool]:
    told, missed = waitlist.read(waiter)
    assert all(event.kind in ENDS and event.id in (name, None) for name, event in told.items())
    return set(told), missed


def test_all_look_when_something_may_have_been_missed() -> None:
    waitlist = Waitlist("q")
    one = watch(waitlist, "a")
    for state, sound in (("anew", True), ("cut", False), ("refused", False)):
        waitlist.take(said(state=state))
        assert waitlist.sound is sound
        assert one.wake.is_set()
        assert ends(waitlist, one) == (set(), True)
    waitlist.take(said())
    assert not one.wake.is_set()


def test_who_looks_anyway_need_not_be_told_to() -> None:
    """An end that was reported is not forgotten."""
    waitlist = Waitlist("q")
    one, other = watch(waitlist, "a"), watch(waitlist, "b")
    waitlist.take(said('{"at": 1, "ids": ["b"]}', state="anew"))
    waitlist.about_to_read(one)
    waitlist.about_to_read(other)
    assert (one.wake.is_set(), other.wake.is_set()) == (False, True)
    assert ends(waitlist, other) == ({"b"}, False)


def test_nobody_is_kept() -> None:
    waitlist = Waitlist("q")
    one, other = watch(waitlist, "a", "b"), watch(waitlist, "a")
    waitlist.remove(one)
    assert waitlist.waiters == {"a": [other]}
    waitlist.remove(other)
    waitlist.remove(other)
    assert waitlist.waiters == {}


def test_jobs_without_an_id_are_named_by_their_shard() -> None:
    message = b'{"at": 1, "ids": ["1-0", "a"]}'
    of_shard, plain = (
        events("q", channel, message) for channel in (CHANNEL.replace("{q}", "{q~12.3}"), CHANNEL)
    )
    assert [event.id for event in of_shard] == ["1-0@12", "a"]
    assert [event.id for event in plain] == ["1-0", "a"]


def test_an_inbox_begins_when_all_are_heard_of() -> None:
    inbox = Inbox(45)
    for name in "ab":
        inbox.expect(name, 0)
    inbox.take("a", Received("anew"), 1)
    assert inbox.received().state == "cut"
    inbox.take("b", said("x"), 2)
    assert inbox.ready
    assert inbox.received() == said("x")
    inbox.expect("c", 3)  # a later one
    inbox.take("b", Received("strayed"), 3)
    assert inbox.received() == Received("on")


def test_an_inbox_bears_a_cut_for_its_time_and_a_refusal_not_at_all() -> None:
    error = ConnectionError("gone")
    for state, at in (("cut", 46), ("refused", 2)):
        inbox = Inbox(45)
        inbox.expect("a", 0)
        inbox.take("a", Received("anew"), 0)
        inbox.take("a", Received("cut", error=error), 1)
        inbox.take("a", Received("cut", error=error), 45.9)
        assert inbox.received().state == "on"
        inbox.take("b", said("x"), 46)
        inbox.take("a", Received(state, error=error), at)
        assert inbox.received().messages, "what has come is told before"
        assert inbox.received() == Received("refused", error=error)
        inbox.forget("a")


def test_an_inbox_has_room_for_so_many_messages() -> None:
    inbox = Inbox(45)
    inbox.take("a", said(*"x" * MESSAGES_AT_MOST), 0)
    assert not inbox.room
    assert len(inbox.received().messages) == MESSAGES_AT_MOST
    assert inbox.room
