"""The program `headrace`. The extra `cli` is imported here only, so that its absence is one clear line."""

from __future__ import annotations

import logging
import os
import sys
from importlib import import_module
from io import TextIOWrapper

from headrace.errors import without_extra


def main() -> None:
    """Run the command line."""
    _open_streams()
    for stream in sys.stdout, sys.stderr:  # characters that the terminal, or a locale without UTF-8, can't take
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        import_module("rich")  # what takes time of it is imported where it is used
        from headrace._cli.app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in {"typer", "rich"}:
            raise
        sys.exit(f"headrace: {without_extra('the command line', 'cli')}")
    logging.getLogger("headrace").addHandler(logging.NullHandler())  # commands tell of errors in lines of their own
    app(prog_name="headrace")


def _open_streams() -> None:
    """Let standard streams that are closed lead nowhere: files opened later would take their numbers."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))


if __name__ == "__main__":
    main()
