"""Bugs planted in scripts, and in modules, to show that a check finds them."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import pytest
from attrs import evolve

from headrace._protocol import queue_ops, script as scripts, shards
from headrace._protocol.features.flows import ops as flow_ops

# All that read scripts for operations.
ROOMS: Sequence[Any] = [flow_ops, queue_ops, shards]

Edit = tuple[str, str, str]
"""The script ('*': every one that has the text), a text of it, and what replaces it."""

# Bugs of what two ways of a script do: that of nearly every call, and that of all others.
EVERYBODY: Sequence[Edit] = [
    ("complete", "places[n] or n] = gone[n]", "places[n] or n] = 1"),
    (
        "complete",
        "reply[i] = redis.call('XDEL', jobs, ARGV[items + i - 1])",
        "redis.call('XDEL', jobs, ARGV[items + i - 1]) reply[i] = 1",
    ),
]
UNWOKEN: Edit = ("lease", "  local rows = woke\n", "  woke = {}\n  local rows = woke\n")


def planted(edits: Sequence[Edit]) -> Callable[[str], scripts.Script]:
    """Make a replacement for `script` that loads scripts with these edits. Each must change
    something."""
    plain: Callable[[str], scripts.Script] = scripts.script
    for name, old, _ in edits:
        names = scripts.names() if name == "*" else [name]
        assert any(old in plain(one).source for one in names), (
            f"{name}.lua has changed: {old!r} is not in it"
        )

    @cache
    def changed(name: str) -> scripts.Script:
        source = plain(name).source
        for script, old, new in edits:
            if script in (name, "*"):
                source = source.replace(old, new)
        sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        return evolve(plain(name), source=source, sha=sha)

    return changed


def check(test: Callable[..., object], given: Mapping[str, object]) -> None:
    """Call a test with the fixtures that it takes."""
    test(**{name: given[name] for name in inspect.signature(test).parameters})


def plant_scripts(monkeypatch: pytest.MonkeyPatch, edits: Sequence[Edit]) -> None:
    changed = planted(edits)
    for room in ROOMS:
        monkeypatch.setattr(room, "script", changed)


def plant(monkeypatch: pytest.MonkeyPatch, module: ModuleType, old: str, new: str) -> None:
    """Change a text of a module, in its functions and the methods of its classes."""
    source = inspect.getsource(module)
    assert old in source, f"{module.__name__} has changed: {old!r} is not in it"
    changed: dict[str, Any] = dict(vars(module))
    exec(
        compile(source.replace(old, new), str(module.__file__), "exec", dont_inherit=True), changed
    )
    planted = False
    for name, kind in [*vars(module).items()]:
        if getattr(kind, "__module__", None) != module.__name__:
            continue
        pairs = [(kind, changed[name])]
        if isinstance(kind, type):
            pairs = [(made, vars(changed[name]).get(method)) for method, made in vars(kind).items()]
        for made, other in pairs:
            if (
                isinstance(made, FunctionType)
                and isinstance(other, FunctionType)
                and made.__code__ != other.__code__
            ):
                monkeypatch.setattr(made, "__code__", other.__code__)
                planted = True
    assert planted, f"{old!r} is in no function"
