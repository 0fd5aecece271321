"""The page docs/reference/cli.md lists the commands and options of the program, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer.main

from headrace.console.cli.app import app
from tests.support.facts import each

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text("utf-8")
SAID_OF_ALL = {
    "--help",
    "--version",
    "--url",
    "--namespace",
    "--json",
    "--jsonl",
    "--yes",
    "--create",
}


def commands(group: Any, before: str = "headrace") -> Iterator[tuple[str, Any]]:
    """Return every command by all of its words."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, f"{before} {name}")
        else:
            yield f"{before} {name}", command


EVERY = dict(commands(typer.main.get_command(app)))


def test_every_command_has_a_heading() -> None:
    headings = re.findall(r"^## (headrace .+)$", PAGE, re.MULTILINE)
    assert sorted(", ".join(headings).split(", ")) == sorted(EVERY)


@each("name", EVERY)
def test_every_option_is_described(name: str) -> None:
    options = {
        option
        for one in EVERY[name].params
        if not getattr(one, "hidden", False)
        for option in one.opts
    }
    long = {option for option in options if option.startswith("--")} - SAID_OF_ALL
    heading = re.search(rf"^## .*\b{name}(,.*)?$", PAGE, re.MULTILINE)
    assert heading is not None
    section = PAGE[heading.end() :].partition("\n## ")[0]
    assert {option for option in long if not re.search(rf"(?<!-){option}\b", section)} == set()


def test_options_of_many_commands_are_described_above_all() -> None:
    above = PAGE.partition("\n## ")[0]
    assert {option for option in SAID_OF_ALL - {"--version"} if option not in above} == set()


def test_every_option_that_is_described_is_there() -> None:
    there = {option for command in EVERY.values() for one in command.params for option in one.opts}
    there |= {"--install-completion", "--show-completion"}
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", PAGE)) - SAID_OF_ALL <= there
