# Generated from `headrace/_net/aio/undoing.py` by .ci/twins.py: edit that file.
"""The undos of a run, called one after another. Their decisions are in `_core/steps/undo.py`."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from headrace._core.effects import Call
from headrace._core.steps.run import Run
from headrace._net.sync.colour import Driven, settled
from headrace._telemetry.steps import StepSpan

Drive = Callable[[Call[Any]], Driven[Any]]  # runs a generator to its end


def undo_all(run: Run, drive: Drive) -> None:
    """Call the undos that are due, the last step's first, and record each. Raises their errors."""
    while (undo := run.undos.next(run)) is not None:
        since = time.monotonic()
        with StepSpan("undo", undo.name):
            with undo.under_way(run):
                settled(undo.function(undo.value))
            drive(run.undos.done(run, undo, time.monotonic() - since))


def undone(run: Run, drive: Drive) -> None:
    """Undo a run, and go on. Raises the error of an undo, `ConfigurationError` or `RunLost`."""
    try:
        if drive(run.undos.begin(run)):
            undo_all(run, drive)
            drive(run.undos.end(run))
    finally:
        run.undos.over(run)


def buried(
    run: Run, drive: Drive, error: BaseException | None, result: Any
) -> BaseException | None:
    """Undo a run that dies by the end of its handler. Return the error that settles its job.

    That is the handler's own, if the run does not die. It is the error of an undo that failed, and
    is tried again. Otherwise it is `DeadLetter`.
    """
    undos = run.undos
    try:
        if not undos.dies(run):
            error = undos.unfinished(run, error)
            why = run.dies_of(error, result) if undos.due(run) else None
            if why is None:
                return error
            drive(undos.die(run, why))
        undo_all(run, drive)
    except BaseException as wrong:
        return undos.failed(run, error, wrong)
    return undos.dead(run, error)
