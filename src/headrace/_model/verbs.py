"""The verbs that change a queue. The command line, the pages and the terminal take their lists
from this table.
"""

from __future__ import annotations

from attrs import frozen


@frozen
class Verb:
    """A method of `Queue` or `Admin` that changes a queue.

    `command` is its command, and '' stands for a command of the same name. With `page`, pages and
    terminal offer it, and an access rule may grant it. It `asks` for confirmation `always`, for
    `many` jobs, or `never`. A `final` verb can't be undone, so pages ask for the queue's name.
    `bulk` takes it for all jobs in these `states`.
    """

    command: str = ""
    page: bool = True
    asks: str = "never"
    final: bool = False
    states: tuple[str, ...] = ()


VERBS = {  # in the order of the command line's help
    "cancel": Verb(asks="many", final=True, states=("waiting", "running", "delayed")),
    "reschedule": Verb(states=("delayed",)),
    "expire": Verb(asks="many", states=("running",)),
    "signal": Verb(),
    "move": Verb(page=False),
    "pause": Verb(),
    "resume": Verb(),
    "drain": Verb(page=False),
    "purge": Verb(asks="always", final=True),
    "delete": Verb(asks="always", final=True),
    "fail_worker": Verb(asks="always"),
    "quiet_worker": Verb(),
    "resume_worker": Verb(),
    "stop_worker": Verb(asks="always"),
    "set_concurrency": Verb(),
    "repair": Verb(asks="many"),
    "reshard": Verb(page=False),
    "redeclare": Verb(page=False),
    "enqueue": Verb("enqueue"),
    "cancel_payload": Verb("cancel", page=False, asks="many"),
    "redrive": Verb("dead redrive", states=("dead",)),
    "purge_dead": Verb("dead purge", asks="many", final=True, states=("dead",)),
    "schedule": Verb("schedules add"),
    "unschedule": Verb("schedules remove"),
    "run_schedule": Verb("schedules run"),
    "pause_schedule": Verb("schedules pause"),
    "resume_schedule": Verb("schedules resume"),
}
BULK = {name: verb.states for name, verb in VERBS.items() if verb.states}


@frozen
class Bulk:
    """Step of a bulk action. `looked`, `matched` and `done` are numbers of jobs.

    `cursor` is where to go on, empty at the end.
    """

    looked: int
    matched: int
    done: int
    cursor: str


def combination(action: object, state: object) -> tuple[str, str]:
    """Check an action and a state. Raises `ValueError` if the action does not take jobs of that
    state."""
    states = BULK.get(str(action))
    if states is None:
        raise ValueError(f"action {action!r}: give one of {', '.join(BULK)}")
    if state not in states:
        raise ValueError(f"state {state!r}: {action} takes jobs that are {' or '.join(states)}")
    return str(action), str(state)
