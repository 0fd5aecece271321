"""An agent's worker dies before and after each effect. Only the effect that was cut off comes
again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field

from headrace import Queue
from tests.agents.killed import APPROVE, EFFECTS, QUEUE, work
from tests.support.awaiting import until
from tests.support.processes import CONTEXT, PRELOADED
from tests.support.servers import Server

POINTS = [(number, when) for number in range(len(EFFECTS)) for when in ("before", "after")]
WORKERS = 3
CONTEXT.set_forkserver_preload([*PRELOADED, "tests.agents.killed"])  # it takes a second


@define(eq=False)
class Workers(ExitStack):
    """Worker processes. Each one that dies has a successor."""

    kind: str
    url: str
    folder: Path
    running: list[Any] = field(factory=list[Any])
    deaths: int = 0

    def __attrs_pre_init__(self) -> None:
        super().__init__()

    def keep(self) -> None:
        """Start what is missing."""
        alive = [one for one in self.running if one.is_alive()]
        self.deaths += len(self.running) - len(alive)
        self.running = alive
        while len(self.running) < WORKERS:
            process = CONTEXT.Process(target=work, args=(self.kind, self.url, self.folder))
            process.start()
            self.callback(process.join)
            self.callback(process.kill)
            self.running.append(process)


@pytest.fixture
def tickets(newest: Server) -> Iterator[Queue[Any]]:
    with Queue(QUEUE, url=newest.url) as queue:
        yield queue


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["threads", "tasks"])
def test_only_the_effect_that_was_cut_off_comes_again(
    kind: str, newest: Server, tickets: Queue[Any], tmp_path: Path
) -> None:
    ids = {f"{number}-{when}": f"{number} {when}".encode() for number, when in POINTS}
    for job, payload in ids.items():
        tickets.enqueue(payload, id=job)
    approved: set[str] = set()

    def done() -> bool:
        workers.keep()
        for job in set(ids) - approved:
            state = tickets.find(job)
            if state is not None and (APPROVE, "waiting") in [
                (one.name, one.state) for one in state.steps
            ]:
                assert tickets.signal(job, APPROVE, True) in {"woke", "kept"}
                approved.add(job)
        return tickets.counts().completed == len(ids)

    with Workers(kind, newest.url, tmp_path) as workers:
        until(done, "the end of all runs", patience=120)
    assert workers.deaths == len(POINTS)
    assert approved == set(ids)
    for number, when in POINTS:
        found = (tmp_path / f"{number}-{when}").read_text().split()
        again = [EFFECTS[number]] if when == "after" else []
        if EFFECTS[number] == "stock":  # the two calls were in flight side by side
            assert 2 <= found.count("stock") <= 4
            found = [one for one in found if one != "stock"]
            assert found == [one for one in EFFECTS if one != "stock"], (number, when)
        else:
            assert found == EFFECTS[: number + 1] + again + EFFECTS[number + 1 :], (number, when)
