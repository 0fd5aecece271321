"""A request for a page, and the parts that several pages share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import frozen
from starlette.requests import Request
from starlette.responses import RedirectResponse

from headrace import Counts
from headrace.console.actions import BULK, BUTTONS, TICKED_TEXTS, Button
from headrace.console.texts import Refused
from headrace.console.web.access import Rights
from headrace.inspect import AsyncInspector, JobView, Overview, QueueView
from headrace.platform import WORDS

# a template and its values, or another page
Answer = tuple[str, Mapping[str, Any]] | RedirectResponse


class NotThere(Refused):
    """Raised for pages of objects that do not exist, or that the user may not see."""


@frozen
class PageRequest:
    request: Request
    rights: Rights
    inspector: AsyncInspector
    trace_url: str

    def param(self, name: str, default: str = "") -> str:
        return self.request.query_params.get(name, default)

    def queue(self, name: str = "name") -> str:
        queue = self.param(name)
        if not queue or not self.rights.sees(queue):
            raise NotThere(f"There is no queue {queue!r}.")
        return queue

    async def seen(self) -> tuple[Overview, list[QueueView]]:
        view = await self.inspector.overview()
        return view, [queue for queue in view.queues if self.rights.sees(queue.name)]


def latest(now: float, *jobs: JobView) -> float:
    """Return *now*, or the last event of these jobs, as *now* may be two seconds older than
    they."""
    return max(
        [
            now,
            *(
                at
                for job in jobs
                for at in (job.enqueued_at, job.since, job.finished)
                if at is not None
            ),
        ]
    )


def by_state(counts: Counts) -> dict[str, int]:
    numbers = (
        counts.waiting + counts.parked,
        counts.leased,
        counts.delayed,
        counts.blocked,
        counts.dead,
    )
    return dict(zip(WORDS.states, numbers, strict=True))


def ticks(request: PageRequest, state: str, queue: str) -> list[str]:
    listed = "waiting" if state == "blocked" else state  # blocked jobs, too, can be cancelled
    return [one for one in TICKED_TEXTS if listed in BULK[one] and request.rights.may(queue, one)]


def buttons(request: PageRequest, page: str, queue: str) -> dict[str, Button]:
    return {
        action: button
        for action, button in BUTTONS.items()
        if button.page == page and request.rights.may(queue, action)
    }
