"""The views of `headrace.inspect`, as generators of effects with bounded reads. They are written
once for both colours.
"""

from __future__ import annotations

from headrace._core.views.activity import ActivityViews
from headrace._core.views.flows import FlowViews
from headrace._core.views.jobs import JobViews
from headrace._core.views.letters import LetterViews
from headrace._core.views.schedules import ScheduleViews
from headrace._core.views.workers import WorkerViews


class Views(FlowViews, JobViews, LetterViews, WorkerViews, ScheduleViews, ActivityViews):
    """The one reader of a process. It caches each reading for a moment, for all viewers, and keeps
    earlier counts, for rates. It reads only on demand.
    """
