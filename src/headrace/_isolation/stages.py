"""The jobs of a flow's stages, and their outcomes, between a parent and a child.

The results of earlier stages stay in the parent. A child asks for each that its handler reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any

from headrace._isolation.link import Head
from headrace._isolation.values import packed, unpacked
from headrace._model.codec import as_bytes
from headrace._model.flow import FanOut, FlowJob, Next, children_of
from headrace._model.job import NOWHERE, Home, Job, NewJob, NewTaskJob, is_new
from headrace._model.policy import unconditional
from headrace._protocol.limits import JOBS_PER_SCRIPT

MAPPINGS = ("results", "children")


def described(job: FlowJob) -> Head:
    names = {one: list(getattr(job, one)) for one in MAPPINGS}
    return {"attributes": dict(job.attributes), "failed": list(job.failed), **names}


# results that the parent has
class Kept(Mapping[str, Any]):
    def __init__(self, names: Sequence[str], read: Callable[[str], Any]) -> None:
        self._names = dict.fromkeys(names)
        self._read = read

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._read(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __repr__(self) -> str:
        return f"<results of {', '.join(self._names)}>"


def staged(job: Job[Any], state: Head, read: Callable[[str, str], Any]) -> FlowJob:
    known = (job.id, job.payload, job.queue, job.headers, job.attempt, job.enqueued_at)
    results, children = (Kept(state[which], partial(read, which)) for which in MAPPINGS)
    return FlowJob(*known, state["attributes"], results, children, tuple(state["failed"]))


# says where a job goes, with its children, and without its result
def told(outcome: Next | FanOut, codec: Any) -> tuple[Head, list[bytes]]:
    if isinstance(outcome, Next):
        return {"next": packed(outcome.stage)}, []
    rows: list[Any] = []
    parts: list[bytes] = []
    # one more than a fan-out may have: the parent refuses it
    for one in islice(children_of(outcome), JOBS_PER_SCRIPT + 1):
        job = unconditional(one) if is_new(one) else NewJob(one)
        known = [job.id, job.headers, job.delay, job.priority, job.queue]
        home: Home = getattr(job, "home", NOWHERE)
        rows.append(packed([*known, [*home.servers], home.namespace]))
        parts.append(as_bytes(codec.encode(job.payload)))
    where = packed([outcome.stage, outcome.join, outcome.failed])
    return {"where": where, "children": rows}, parts


def remade(head: Head, parts: Sequence[bytes], codec: Any, result: Any) -> Next | FanOut:
    if "next" in head:
        return Next(unpacked(head["next"]), result)
    stage, join, failed = unpacked(head["where"])
    children: list[NewJob[Any]] = []
    for row, part in zip(head["children"], parts, strict=True):
        name, headers, delay, priority, queue, servers, namespace = unpacked(row)
        home = Home(frozenset(servers), namespace)
        children.append(
            NewTaskJob(codec.decode(part), name, headers, delay, priority, queue, home=home)
        )
    return FanOut(children, stage, join, failed, result)
