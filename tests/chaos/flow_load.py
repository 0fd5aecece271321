"""The flow of the storm. A run's id tells its course to the handlers and to the judge.

pick → bill                 a run; between the two it waits for its children
  pack (→ weigh)            a child; those of even number go through both
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from random import Random
from typing import Any, Self

from attrs import frozen

from headrace import AsyncFlow, DeadLetter, FanOut, Flow, Job, NewJob, Next, Retry

FLOW = "mill"
STAGES = ("pick", "pack", "weigh", "bill")


@frozen
class Plan:
    """The course of a run, and its parts."""

    kind: str
    """well: nothing dies · sick: a job dies once, until it is redriven · dead: it dies whenever it
    runs."""
    failed: str
    """What the failure of a child means."""
    children: int
    where: str
    """The stage in which it dies; of the children it is the first."""

    @classmethod
    def of(cls, name: str) -> Self:
        """Return the plan of a run, or of the run of a child."""
        kind, failed, children, where, *_ = name.partition("/")[0].split("-")
        return cls(kind, failed, int(children), where)

    @classmethod
    def drawn(cls, dice: Random) -> Self:
        """Draw any plan."""
        kind = dice.choices(["well", "sick", "dead"], [6, 2, 2])[0]
        least = 0 if kind == "well" else 1
        return cls(
            kind,
            dice.choice(["fail", "continue", "cancel"]),
            dice.randint(least, 5),
            dice.choice(STAGES),
        )

    def name(self, who: str, number: int) -> str:
        """Return an id that tells the plan."""
        return f"{self.kind}-{self.failed}-{self.children}-{self.where}-{who}-{number}"

    def ends(self, child: str) -> str:
        """Return the last stage of a child."""
        return "pack" if int(child.rpartition("/")[2]) % 2 else "weigh"

    def doomed(self, stage: str, name: str) -> bool:
        """Tell whether a job is to die in a stage."""
        return (
            self.kind != "well" and stage == self.where and ("/" not in name or name.endswith("/0"))
        )


def value(payload: bytes) -> bytes:
    return payload[::-1]


def named(job: Job) -> str:
    """Return the name of a job in the books. Jobs of stages have the stage in front."""
    stage = job.queue.partition("/")[2]
    return f"{stage}|{job.id}" if stage else job.id


def step(
    stage: str, job: Job, children: Mapping[str, bytes | None], failed: Collection[str], folder: Path
) -> Any:  # fmt: skip
    """Return the result of a stage's handler, or raise `DeadLetter` where the plan says so."""
    plan = Plan.of(job.id)
    if plan.doomed(stage, job.id):
        mark = folder / f"sick {stage} {job.id.replace('/', ' ')}"
        if plan.kind == "dead" or not mark.exists():
            mark.touch()
            raise DeadLetter("made to")
    if stage == "pick":
        every = range(plan.children)
        some = [NewJob(f"{job.id}/1/{i}", delay=0.2 if i == 3 else None) for i in every]
        return FanOut(some, failed=plan.failed, result=b"picked")
    if stage == "bill":
        kept = {
            name: None if result is None else result.decode() for name, result in children.items()
        }
        return json.dumps([kept, sorted(failed)]).encode()
    return (
        None if stage == "pack" and plan.ends(job.id) == "weigh" else Next(None, value(job.payload))
    )


def declared(flow: Flow | AsyncFlow, lease: float) -> dict[str, Any]:
    """Declare the stages and return the decorators for their handlers."""
    options: Any = {
        "lease": lease,
        "concurrency": 2,
        "retry": Retry(wait=0.05),
        "max_attempts": None,
    }
    return {
        "pick": flow.stage("pick", next="bill", children="pack", **options),
        "pack": flow.stage("pack", next="weigh", **options),
        "weigh": flow.stage("weigh", **options),
        "bill": flow.stage("bill", **options),
    }
