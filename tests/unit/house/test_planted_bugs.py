"""Every planted bug replaces text of the current scripts and modules. Otherwise it would plant
nothing."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator

from headrace._protocol.script import names, script
from tests.chaos import mutants as chaos
from tests.children import mutants as children
from tests.cluster import mutants as cluster
from tests.fair import mutants as fair
from tests.flows import mutants as flows
from tests.model import mutants as model
from tests.steps import mutants as steps
from tests.support.facts import each


def edits() -> Iterator[tuple[str, str, str, str]]:
    """Yield (bug, script, text, planted text)."""
    for script_name, old, new in chaos.COUNTED:
        yield "counted", script_name, old, new
    for bug, mutant in chaos.MUTANTS.items():
        for script_name, old, new in mutant.edits:
            yield bug, script_name, old, new
    some = (model.MUTANTS, model.SCHEDULES, model.HAND_OVER, model.ORDERED, model.RESHARDING)
    some += (
        flows.MUTANTS,
        steps.MUTANTS,
        steps.UNDONE,
        steps.IN_STORMS,
        fair.PICKS,
        children.MUTANTS,
    )
    for bug, (changes, _) in (*fair.MUTANTS.items(), *fair.SLOTS.items()):
        for script_name, old, new in changes:
            yield bug, script_name, old, new
    for bug, ((script_name, old, new), _) in cluster.DURABLE_IN_SCRIPTS.items():
        yield bug, script_name, old, new
    for bug, changes in (item for mutants in some for item in mutants.items()):
        for script_name, old, new in changes:
            yield bug, script_name, old, new


CALLED = re.compile(r"(?<![.:\w])([a-z_]+)(?:[.:][a-z_]+)*\(")
OF_LUA = {
    "and",
    "or",
    "not",
    "if",
    "then",
    "return",
    "ipairs",
    "tonumber",
    "unpack",
    "string",
    "math",
    "redis",
}


@each(("bug", "name", "old", "new"), list(edits()))
def test_it_fits(bug: str, name: str, old: str, new: str) -> None:
    """The bug replaces a text that is there. It calls no removed function, because that would be an
    error and no bug.
    """
    sources = [
        source
        for one in (names() if name == "*" else [name])
        if old in (source := script(one).source)
    ]
    assert sources, f"{bug}: {old!r}"
    called = set(CALLED.findall(new)) - OF_LUA
    assert any(called <= set(CALLED.findall(source)) for source in sources), f"{bug}: {called}"


ROOMS = (cluster.MUTANTS, cluster.SENTINEL, cluster.DURABLE, cluster.SHARDS, cluster.HAND_OVER)
IN_MODULES = {
    name: bug
    for some in (*ROOMS, cluster.STORM, cluster.DURABLE_STORM)
    for name, bug in some.items()
}


@each("bug", IN_MODULES)
def test_it_fits_a_module(bug: str) -> None:
    mutant = IN_MODULES[bug]
    assert inspect.getsource(mutant.module).count(mutant.old) == 1


CORE = model.HAND_OVER_IN_MODULES | model.RESHARDING_IN_MODULES | steps.IN_MODULES
CORE |= steps.UNDONE_IN_MODULES | steps.MODULES_IN_STORMS


@each("bug", CORE)
def test_it_fits_the_core(bug: str) -> None:
    module, old, _ = CORE[bug]
    assert inspect.getsource(module).count(old) == 1
