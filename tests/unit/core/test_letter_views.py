"""Dead letters of many queues. A queue is read again only if its letters may have changed."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import define, field

from headrace import Job
from headrace._core.effects import Call, Inform, Now, Scan, Send
from headrace._core.views import overview
from headrace._core.views.letters import QUEUES_A_TRIP, ROUNDS
from headrace._core.views.reader import LOOKED_AT_MOST, READ_AT_MOST_BYTES, SEARCH_KEPT
from headrace._core.views.views import Views
from headrace._model.codec import Codec
from headrace._model.letters import DeadPage
from headrace._model.state import Counts, JobState
from headrace._protocol.op import Op
from headrace._protocol.view_ops import About, Signs

FRESH_S = 2.0
NAMES = [f"q{number:02}" for number in range(12)]
AGAIN = SEARCH_KEPT  # looks after which letters are read again
OLDEST = len(NAMES) // ROUNDS  # queues that are read again each time


def as_it_is(_: Codec[Any], state: JobState[Any]) -> JobState[Any]:
    return state


@define(eq=False)
class Server:
    """Queues with the times of their dead letters, an inspector, and the names of the queues whose
    letters it read."""

    letters: dict[str, list[float]] = field(factory=lambda: {name: [1.0, 2.0] for name in NAMES})
    now: float = 1000.0
    size: int = 10  # bytes of a letter
    read: list[str] = field(factory=list[str])
    measured: list[str] = field(factory=list[str])
    views: Views = field(factory=lambda: Views("n", None, None, FRESH_S, (), as_it_is))

    def looks(self, number: int) -> list[DeadPage]:
        return [self.look() for _ in range(number)]

    def look(self, names: list[str] | None = None) -> DeadPage:
        """Read all queues and their letters, as a page does. With *names*, read only the letters of
        these queues."""
        self.now += FRESH_S
        self.read = []
        if names is None:
            names = [queue.name for queue in self._run(self.views.overview()).queues]
        page: DeadPage = self._run(self.views.deaths(names))
        return page

    def _run(self, step: Call[Any]) -> Any:
        answer: Any = None
        while True:
            try:
                effect: Any = step.send(answer)
            except StopIteration as done:
                return done.value
            match effect:
                case Now():
                    answer = self.now
                case Scan():
                    answer = 0, [f"h:{{n:{name}}}:{name}:jobs" for name in self.letters]
                case Inform():
                    answer = []
                case _:
                    assert isinstance(effect, Send)
                    answer = [self._answer(op) for op in effect.ops]

    def _answer(self, op: Op[Any]) -> Any:
        name = next(one for one in self.letters if f":{one}:" in op.keys[0])
        letters = self.letters[name]
        counts = Counts(enqueued=len(letters), dead=len(letters))
        if op.name == "measure":
            self.measured.append(name)
        if op.name != "list":
            answers: dict[str, Any] = {
                "measure": (About(self.now, False, 1, 0, {}), (counts, 0.0, 0.0)),
                "counts": counts,
            }
            return {**answers, "relayed": None, "workers": (), "signs": Signs()}[op.name]
        _, cursor, limit, _ = op.args
        self.read.append(name)
        end = int(str(cursor) or len(letters))
        start = max(0, end - int(str(limit)))
        found = [
            JobState(Job(f"{at}", b"", name), "dead", since=at, reason="why")
            for at in letters[start:end]
        ]
        return found[::-1], str(start or ""), self.now, self.size * len(found)


def test_of_many_queues_half_are_read_at_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    """The others are read at the next look, and all after a pause, or once a program forgets."""
    monkeypatch.setattr(overview, "CLOSER_AT_ONCE", 1)
    server = Server()

    def measured() -> set[str]:
        server.measured.clear()
        server.look()
        return set(server.measured)

    assert measured() == set(NAMES)
    half, other = measured(), measured()
    assert (len(half), len(other)) == (6, 6)
    assert half | other == set(NAMES)
    assert measured() == half
    server.now += FRESH_S
    assert measured() == set(NAMES)
    server.views.forget()
    assert measured() == set(NAMES)


@pytest.fixture
def server() -> Server:
    """Return the queues after their letters have been read and counted."""
    server = Server()
    assert [page.all for page in server.looks(AGAIN)] == [24] * AGAIN
    return server


def test_letters_are_read_again_where_their_number_has_changed(server: Server) -> None:
    server.letters["q07"].append(3.0)
    server.letters["q09"].pop()
    server.letters["q10"].clear()
    del server.letters["q11"]
    page = server.look()
    assert page.all == page.seen == 20
    assert dict(page.groups[0].queues) == {
        name: len(letters) for name, letters in server.letters.items() if letters
    }
    assert page.groups[0].last == 3.0
    assert {"q07", "q09", "q10"} < set(server.read)
    assert len(server.read) == 3 + OLDEST
    server.look()
    assert server.read == []  # ten seconds have not passed


def test_each_queue_is_read_once_a_minute(server: Server) -> None:
    """A letter that was redriven and died again changes no number."""
    server.letters["q11"][:] = [1.0, 500.0]
    read: list[str] = []
    page = server.look()
    for _ in range(ROUNDS):
        read += server.read
        page = server.looks(AGAIN)[-1]
    assert sorted(read) == NAMES
    assert page.groups[0].last == 500.0


def test_old_readings_are_not_shown(server: Server) -> None:
    server.now += (ROUNDS + 1) * AGAIN * FRESH_S
    server.look()
    assert sorted(server.read) == NAMES


def test_without_a_count_since_all_are_read_again(server: Server) -> None:
    server.look()
    for _ in range(AGAIN):
        server.look(NAMES)
    assert sorted(server.read) == NAMES


def test_letters_that_found_no_room_are_read_the_next_time() -> None:
    server = Server(size=READ_AT_MOST_BYTES // 4)
    for _ in range(2 * AGAIN):
        server.look()
        assert server.read in ([], NAMES[:QUEUES_A_TRIP])  # as much as there is room for
    server.size = 10
    page = server.looks(AGAIN)[-1]
    assert page.seen == page.all == 24


def test_an_action_has_all_read_again(server: Server) -> None:
    server.views.forget()
    server.look()
    assert sorted(server.read) == NAMES


def test_a_flood_leaves_room_for_the_others() -> None:
    """Each queue has its share of the page. The flood fills the rest, whichever queues are read
    again."""
    server = Server()
    flood = [100.0 + at for at in range(LOOKED_AT_MOST * 2)]
    server.letters["q00"] = list(flood)
    page = server.look()
    assert (page.seen, page.all) == (LOOKED_AT_MOST, len(flood) + 22)
    page = server.looks(AGAIN)[-1]
    server.letters["q05"] = list(flood)
    page = server.looks(AGAIN)[-1]
    assert dict(page.groups[0].queues)["q05"] >= LOOKED_AT_MOST // len(NAMES)
    assert page.all == 2 * len(flood) + 20
    assert page.seen <= 2 * LOOKED_AT_MOST
