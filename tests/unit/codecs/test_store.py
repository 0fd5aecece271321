"""A directory as a store. A payload in it is complete or absent."""

from __future__ import annotations

import os
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from headrace.codecs import DirectoryStore
from tests.support.facts import each


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "deep" / "payloads")


def aged(store: DirectoryStore, key: str, seconds: float) -> None:
    then = time.time() - seconds
    os.utime(store.path / key, (then, then))


def test_what_is_put_is_there_until_it_is_deleted(store: DirectoryStore) -> None:
    store.put("a", b"one")
    store.put("a", b"two")
    assert store.get("a") == b"two"
    assert [file.name for file in store.path.iterdir()] == ["a"]
    store.delete("a")
    store.delete("a")
    with pytest.raises(KeyError, match="a"):
        store.get("a")


def test_a_directory_that_is_away_is_no_missing_payload(store: DirectoryStore) -> None:
    """A disk that is not mounted raises an error other than a missing payload, so that jobs wait
    for the disk."""
    with pytest.raises(OSError, match="payloads"):
        store.get("a")
    store.delete("a")
    assert store.sweep(1) == 0


@each(
    "key",
    ["", ".", "..", ".a", "a/b", "../a", "/etc/passwd", "a\0", "a" * 201, "ä", "a\n", None, b"a"],
)
def test_keys_stay_in_the_directory(store: DirectoryStore, key: Any) -> None:
    for use in (store.get, store.delete, lambda key: store.put(key, b"x")):
        with pytest.raises(ValueError, match="key must be"):
            use(key)
    assert not store.path.exists()


@pytest.mark.parametrize("failing", ["fsync", "replace"])
def test_a_write_that_fails_leaves_nothing(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    store.put("a", b"before")

    def fail(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(*((os, "fsync") if failing == "fsync" else (Path, "replace")), fail)
    with pytest.raises(OSError, match="disk full"):
        store.put("a", b"after")
    assert [file.name for file in store.path.iterdir()] == ["a"]
    assert store.get("a") == b"before"


def test_it_is_on_disk_before_it_has_its_name(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[list[str]] = []
    fsync = os.fsync

    def noted(file: int) -> None:
        synced.append(sorted(one.name for one in store.path.iterdir()))
        fsync(file)

    monkeypatch.setattr(os, "fsync", noted)
    store.put("a", b"x")
    before, after = synced
    assert before[0].endswith(".half")
    assert after == ["a"]


def test_sweep(store: DirectoryStore) -> None:
    """A read renews the age of a file. Half-written files of dead writers are removed too."""
    for key in ("old", "read", "new"):
        store.put(key, b"x")
    (store.path / ".dead.half").write_bytes(b"x")
    (store.path / "folder").mkdir()
    for key in ("old", "read", ".dead.half", "folder"):
        aged(store, key, 100)
    assert store.get("read") == b"x"
    assert store.sweep(timedelta(seconds=50)) == 2
    assert sorted(file.name for file in store.path.iterdir()) == ["folder", "new", "read"]
    for wrong in (0, -1, float("nan")):
        with pytest.raises(ValueError, match="older_than"):
            store.sweep(wrong)
