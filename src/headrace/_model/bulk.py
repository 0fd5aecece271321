"""Bulk actions: one verb for all jobs of a state that match, step by step."""

from __future__ import annotations

from attrs import frozen

BULK: dict[str, tuple[str, ...]] = {  # by action, the states whose jobs it takes
    "cancel": ("waiting", "running", "delayed"),
    "expire": ("running",),
    "reschedule": ("delayed",),
    "redrive": ("dead",),
    "purge_dead": ("dead",),
}


@frozen
class Bulk:
    """Step of a bulk action: the numbers of jobs that were `looked` at, that `matched`, and that are `done`.

    `cursor` is where to go on, empty at the end.
    """

    looked: int
    matched: int
    done: int
    cursor: str


def combination(action: object, state: object) -> tuple[str, str]:
    """Check an action and a state. Raises `ValueError` if the action does not take jobs of that state."""
    states = BULK.get(str(action))
    if states is None:
        raise ValueError(f"action {action!r}: give one of {', '.join(BULK)}")
    if state not in states:
        raise ValueError(f"state {state!r}: {action} takes jobs that are {' or '.join(states)}")
    return str(action), str(state)
