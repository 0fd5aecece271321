"""Builds of workers, and the rules by which one continues the runs of another."""

from __future__ import annotations

import re

from headrace._model.steps import step_name
from headrace.errors import ConfigurationError

RULES = ("any", "same", "at_least")


def build_name(value: object) -> str:
    """Check the build of a worker. '' is none.

    Raises `TypeError` or `ValueError` for anything but 1 to 200 printable characters of ASCII
    without quotes and backslashes.
    """
    if value == "":
        return ""
    name = step_name(value, "build", "it")
    if not re.fullmatch(r"[ !#-\[\]-~]+", name):
        raise ValueError(f"build={name!r}: give printable ASCII, without quotes and backslashes")
    return name


def rule_of(value: object, build: str) -> str:
    """Check which runs a handler continues. Raises `ConfigurationError` for a rule that needs a
    build where the worker has none.
    """
    if value not in RULES:
        raise ValueError(f"runs={value!r:.100}: give one of {', '.join(RULES)}")
    if value != "any" and not build:
        raise ConfigurationError(
            f"runs={value!r}: it compares builds: give the worker its build=, or set HEADRACE_BUILD"
        )
    return str(value)


def natural(build: str) -> list[tuple[int, int, str]]:
    """Return the sort key of a build, in which groups of digits are numbers."""
    parts = re.findall(r"[0-9]+|[^0-9]+", build)
    return [(1, int(part), "") if part.isdecimal() else (0, 0, part) for part in parts]


def continues(rule: str, own: str, begun_by: str) -> bool:
    """Tell whether a worker of the build *own* may continue a run that another build began."""
    if rule == "any" or not begun_by:
        return True
    if rule == "same":
        return own == begun_by
    return natural(own) >= natural(begun_by)


def wanted(rule: str, begun_by: str) -> str:
    """Say in words which builds may continue a run."""
    return f"{begun_by} or later" if rule == "at_least" else begun_by
