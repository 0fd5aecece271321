"""The view of one schedule."""

from __future__ import annotations

from headrace._core.effects import Call, send
from headrace._core.views.reader import Reader
from headrace._core.views.redaction import editable
from headrace._model.views.jobs import ScheduleView
from headrace._protocol.features import schedules as schedule_ops
from headrace._protocol.keys import job_id


class ScheduleViews(Reader):
    def schedule(self, name: str, schedule: str) -> Call[ScheduleView | None]:
        self._ops_factory.whole(name)  # refused before anything is sent
        job_id(schedule)

        def build() -> Call[ScheduleView | None]:
            for ops in reversed((yield from self._of(name))):  # an old shard may still have it
                found = yield from send(schedule_ops.schedule_of(ops, schedule))
                if found is not None:
                    shown = self.showing.job(found[1], whole=True)
                    payload = editable(ops.codec, shown.payload, found[1].job.payload)
                    return ScheduleView(name, found[0], payload, shown.headers)
            return None

        return (yield from self.kept(("schedule", name, schedule), build))
