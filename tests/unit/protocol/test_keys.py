"""Names and keys. The tests check valid names, and that all keys of a group are in one slot."""

from __future__ import annotations

import re
from typing import Any

import pytest
from redis.crc import key_slot

from headrace import ConfigurationError
from headrace._protocol import keys
from headrace._protocol.keys import Keys, job_id, pattern, queue_of, worker_name
from tests.support.facts import each


@each("name", ["a", "a.b_c-D9", "g/q", "0/0", "x" * 200, "x" * 100 + "/" + "y" * 99])
def test_queue_names(name: str) -> None:
    keys = Keys.of(name)
    assert keys.group == name.split("/", maxsplit=1)[0]
    assert keys.key("jobs") == f"headrace:{{{keys.group}}}:{name}:jobs"
    assert queue_of(keys.key("jobs")) == queue_of(keys.key("delayed")) == name


@each(
    "name",
    [
        "",
        "/",
        "a/",
        "/a",
        "a//b",
        "a/b/c",
        "x" * 201,
        "a b",
        "ä",
        "a:b",
        "{a}",
        "a\n",
        "a\x00",
        "*",
        "a\n/b",
    ],
)
def test_names_that_no_queue_may_have(name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"queue name .* 1-200 letters") as raised:
        Keys.of(name)
    assert isinstance(raised.value, ValueError)


@each("name", [None, 5, b"a", ["a"]])
def test_a_name_is_a_str(name: Any) -> None:
    with pytest.raises(TypeError, match="queue must be a str"):
        Keys.of(name)
    with pytest.raises(TypeError, match="namespace must be a str"):
        Keys.of("q", name)


@each("namespace", ["", "a:b", "{a}", "a b", "x" * 101, "a\n", "*", "a?"])
def test_names_that_no_namespace_may_have(namespace: str) -> None:
    for use in (lambda: Keys.of("q", namespace), lambda: pattern(namespace)):
        with pytest.raises(ConfigurationError, match="namespace"):
            use()


def test_all_keys_of_a_group_are_in_one_slot() -> None:
    keys = [Keys.of(name) for name in ("shop", "shop/orders", "shop/bills")]
    names = [k.key(part) for k in keys for part in ("jobs", "wake", "ids", "stats")]
    names += [name for k in keys for name in (k.lane("abc"), k.result("any {id} } at all"))]
    assert len({key_slot(name.encode()) for name in names}) == 1
    assert len(set(names)) == len(names)
    assert len({key_slot(Keys.of(name).key("jobs").encode()) for name in "abcdefgh"}) > 1


def test_no_key_of_one_queue_is_another_s() -> None:
    """No choice of names makes two queues or two namespaces share a key."""
    names = ["a", "a/b", "a.b", "b", "jobs", "a/jobs", "result", "lane"]
    made = [
        (namespace, name, Keys.of(name, namespace).key(part))
        for namespace in ("headrace", "headrace.a", "a")
        for name in names
        for part in ("jobs", "lane:jobs", "result:jobs")
    ]
    assert len({key for _, _, key in made}) == len(made)


@each(
    "key",
    [
        "",
        "jobs",
        "headrace:{q}:q:ids",
        "headrace:{q}:a b:jobs",
        "headrace:q:q:jobs",
        "headrace:{q}:q:jobs:x",
    ],
)
def test_keys_that_show_no_queue(key: str) -> None:
    assert queue_of(key) is None


def test_the_pattern_finds_what_shows_a_queue() -> None:
    glob = (
        re.escape(pattern("ns"))
        .replace(r"\*", ".*")
        .replace(r"\[", "[")
        .replace(r"\]", "]")
        .replace(r"\:", ":")
    )
    for part, found in (
        ("jobs", True),
        ("delayed", True),
        ("schedules", True),
        ("stats", False),
        ("wake", False),
    ):
        assert bool(re.fullmatch(glob, Keys.of("g/q", "ns").key(part))) is found, part


@each("name", ["a", "x" * 500, "ä" * 250, "a b", "{}:*", "1-0", "'\"\\", "\u2028"])
def test_ids(name: str) -> None:
    assert job_id(name) == name


@each(
    ("name", "error", "says"),
    [
        ("", ValueError, "1-500 bytes"),
        ("x" * 501, ValueError, "501 bytes"),
        ("ä" * 251, ValueError, "502 bytes"),
        ("a\n", ValueError, "control"),
        ("\x00", ValueError, "control"),
        ("\x7f", ValueError, "control"),
        ("\ud800", ValueError, "Unicode"),
        (b"a", TypeError, "id must be a str, not bytes"),
        (5, TypeError, "id must be a str, not int"),
        (None, TypeError, "id must be a str, not NoneType"),
    ],
)
def test_what_no_id_may_be(name: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        job_id(name)


@each("name", ["w", "host-1.example_x", "x" * 200])
def test_worker_names(name: str) -> None:
    assert worker_name(name) == name


@each(
    "name",
    ["", "parked", "idle", "limited", "behind", "a b", "a:b", "x" * 201, "ä", "w\n", 5, None],
)
def test_what_no_worker_may_be_called(name: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="name"):
        worker_name(name)


def test_reserved_names_are_those_of_the_scripts() -> None:
    assert (keys.GROUP, keys.PARKED, keys.IDLE, keys.BEHIND) == (
        "workers",
        "parked",
        "idle",
        "behind",
    )
