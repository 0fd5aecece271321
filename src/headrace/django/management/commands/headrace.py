"""The command line as `manage.py headrace …`, on the server of the backend `default`."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headrace.django._commands import program
from headrace.errors import HeadraceError

_base: Any = import_module("django.core.management.base")


class Command(_base.BaseCommand):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    help = "headrace's command line, on the server of TASKS['default']: manage.py headrace stats"

    def run_from_argv(self, argv: list[str]) -> None:
        """Pass on all that stands behind the command's name."""
        try:
            program(argv[2:])
        except HeadraceError as error:
            self.stderr.write(str(error))
            raise SystemExit(2) from None

    def handle(self, *arguments: str, **_: Any) -> None:
        """Do the same for `call_command("headrace", "stats")`."""
        program(arguments)

    def add_arguments(self, parser: Any) -> None:
        parser.add_argument("arguments", nargs="*")
