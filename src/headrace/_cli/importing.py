"""Import of an object that a command names as MODULE:NAME, from the working directory or Python's path."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from functools import reduce
from pathlib import Path
from typing import Any

from headrace.errors import ConfigurationError


def module_of(target: str, example: str) -> tuple[Any, str]:
    """Import the module of *target*, MODULE:NAME; return it, and the name. Raises `ConfigurationError`."""
    name, _, path = target.partition(":")
    if not name or not path:
        raise ConfigurationError(f"give MODULE:NAME, such as app:{example}")
    if name.endswith(".py") or "/" in name:
        raise ConfigurationError(f"give the name of a module, such as app:{example}, not of a file")
    sys.path.insert(0, str(Path.cwd()))
    if os.environ.get("DJANGO_SETTINGS_MODULE"):
        _set_up_django()
    try:
        return importlib.import_module(name), path
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise
        raise ConfigurationError(f"no module {error.name!r} in {sys.path[0]} or on Python's path") from None
    except SystemExit as error:
        raise ConfigurationError(
            f"module {name!r} ends the program as it is imported: SystemExit({error.code!r})"
        ) from None


def function_of(target: str) -> Callable[..., Any]:
    """Import the function that *target* names, MODULE:NAME. Raises `ConfigurationError` if there is none."""
    module, path = module_of(target, "redact")
    found: Any = reduce(lambda of, name: getattr(of, name, None), path.split("."), module)
    if not callable(found):
        raise ConfigurationError(f"module {module.__name__!r} has no function {path!r}")
    return found  # type: ignore[no-any-return]


def _set_up_django() -> None:
    """Let handlers import models, as `manage.py` does. Does nothing without Django."""
    try:
        django: Any = importlib.import_module("django")
    except ModuleNotFoundError as error:
        if error.name != "django":
            raise
        return
    django.setup()
