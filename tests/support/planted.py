"""Bugs planted in scripts, to show that a check finds them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

from attrs import evolve

from headrace._protocol import admission, base_ops, flow_ops, prepared, queue_ops, result_ops
from headrace._protocol import script as scripts

ROOMS: Sequence[Any] = [admission, base_ops, flow_ops, prepared, queue_ops, result_ops]  # all that make operations

Edit = tuple[str, str, str]
"""The script ('*': every one that has the text), a text of it, and what replaces it."""


def planted(edits: Sequence[Edit]) -> Callable[[str], scripts.Script]:
    """Make a replacement for `script` that loads scripts with these edits. Each must change something."""
    plain: Callable[[str], scripts.Script] = scripts.script
    for name, old, _ in edits:
        names = scripts.names() if name == "*" else [name]
        assert any(old in plain(one).source for one in names), f"{name}.lua has changed: {old!r} is not in it"

    @cache
    def changed(name: str) -> scripts.Script:
        source = plain(name).source
        for script, old, new in edits:
            if script in (name, "*"):
                source = source.replace(old, new)
        sha = hashlib.sha1(source.encode(), usedforsecurity=False).hexdigest()
        return evolve(plain(name), source=source, sha=sha)

    return changed
