"""The queue, the command line, the pages and the terminal have the verbs that the table says."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main
from click.testing import CliRunner

import headrace
from headrace._model.verbs import VERBS
from headrace.console.actions import ACTIONS, BULK_TEXTS, BUTTONS, CALLS
from headrace.console.cli.app import app
from headrace.console.cli.console import as_typed
from headrace.inspect import Admin
from tests.support.facts import each

COMMAND: Any = typer.main.get_command(app)
UI = Path(headrace.__file__).parent / "console"


@each("name", VERBS)
def test_a_verb_is_there(name: str) -> None:
    """A verb is in the API and on the command line. Commands that ask on a terminal take --yes."""
    assert callable(getattr(headrace.Queue, name, None) or getattr(Admin, name, None))
    command = COMMAND
    for word in (VERBS[name].command or name.replace("_", "-")).split():
        command = command.commands[word]
    assert ("yes" in {one.name for one in command.params}) == (VERBS[name].asks != "never")


def _helps(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    yield path
    for name, one in getattr(command, "commands", {}).items():
        yield from _helps(one, (*path, name))


@each("path", list(_helps(COMMAND)), ids=" ".join)
def test_no_help_is_cut(path: tuple[str, ...]) -> None:
    """Every line fits into 80 columns, and no command's summary ends in dots."""
    lines = (
        CliRunner()
        .invoke(COMMAND, [*path, "--help"], env={"COLUMNS": "80", "TERM": "dumb"})
        .output.splitlines()
    )
    assert lines
    assert [line for line in lines[1:] if len(line) > 80 or line.rstrip().endswith("...")] == []


@each("path", list(_helps(COMMAND)), ids=" ".join)
def test_messages_name_options_as_they_are_typed(path: tuple[str, ...]) -> None:
    """An error of the library may name an option by its argument. A value is named only if the
    option was given."""
    command = COMMAND
    for word in path:
        command = command.commands[word]
    options = {one.name: one.opts[0] for one in command.params if one.opts[0].startswith("-")}
    for name, typed in options.items():
        said = f"{name}=-5.0: give {name}= or other=, not Rate({name}=5) or my_{name}=3"
        there = f"{typed} -5.0: give {typed} or other=, not Rate({name}=5) or my_{name}=3"
        assert as_typed(said, options, {name}) == there
        assert as_typed(said, options, ()) == there.replace(f"{typed} -5.0", f"{name}=-5.0")
        assert as_typed(f"{name} 'x': wrong", options, {name}) == f"{typed} 'x': wrong"


def test_pages_and_terminal_act_by_the_table() -> None:
    """Each verb that an access rule may grant is an action, has a form, and only such verbs have
    keys."""
    assert CALLS.keys() == ACTIONS
    forms = "".join(page.read_text("utf-8") for page in (UI / "web" / "templates").glob("*.html"))
    bulk = {name for name, verb in VERBS.items() if verb.states}
    assert bulk == BULK_TEXTS.keys()
    single = ACTIONS - bulk - BUTTONS.keys()
    assert single == {name for name in single if re.search(rf"do/{name}\"|\"{name}\"", forms)}
    assert BUTTONS.keys() <= ACTIONS
    panes = "".join(path.read_text("utf-8") for path in (UI / "top").glob("*.py"))
    keys = set(re.findall(r"act\('(\w+)'\)", panes))
    assert "pause" in keys
    assert keys <= ACTIONS
