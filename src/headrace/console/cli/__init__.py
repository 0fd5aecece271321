"""The program `headrace`. The extra `cli` is imported here only, so that its absence is one clear
line."""

from __future__ import annotations

import logging
import os
import sys
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper

from headrace.errors import ConfigurationError, requiring


def main() -> None:
    _open_streams()
    _read_arguments()
    # characters that the terminal, or a locale without UTF-8, can't take
    for stream in sys.stdout, sys.stderr:
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        with requiring("the command line", "cli", "typer", "rich"):
            import_module("rich")  # its slow parts are imported where they are used
            from headrace.console.cli.app import app
    except ConfigurationError as error:
        sys.exit(f"headrace: {error}")
    # commands report errors in lines of their own
    logging.getLogger("headrace").addHandler(logging.NullHandler())
    app(prog_name="headrace")


def _read_arguments() -> None:
    """Decode the arguments as UTF-8 in any locale, because ids and payloads on the server are
    UTF-8.
    """
    for place, argument in enumerate(sys.argv):
        with suppress(UnicodeError):  # bytes of another encoding stay as the locale reads them
            sys.argv[place] = os.fsencode(argument).decode()


def _open_streams() -> None:
    """Let closed standard streams lead nowhere. Files that are opened later would take their
    numbers.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


if __name__ == "__main__":
    main()
