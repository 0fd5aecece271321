"""Views of queues, jobs, workers and flows, for web pages, the command line, and tools of your own.

    with Inspector(url="redis://localhost:6379/0") as look:
        for queue in look.overview().queues:
            print(queue.name, queue.counts.waiting, queue.lag, queue.law)

Also the types of `queue.admin` and of its answers.
"""

from headrace._api.aio.admin import AsyncAdmin
from headrace._api.aio.inspector import AsyncInspector
from headrace._api.sync.admin import Admin
from headrace._api.sync.inspector import Inspector
from headrace._model.flow import ChildView, FlowView, RunsPage, RunView, StageView
from headrace._model.letters import DeadGroup, DeadPage, reason_key
from headrace._model.shards import Resharding, Shard
from headrace._model.state import (
    Attempt,
    ChildFacts,
    Children,
    OtherTerms,
    Place,
    Repairs,
    RunState,
    WorkerFacts,
    WorkerState,
)
from headrace._model.steps import Child, First, Progress, Step
from headrace._model.terms import LimitView, Share, SlotView, Tenants
from headrace._model.verbs import Bulk
from headrace._model.views.activity import Activity, ActivityPoint, Ends, MachineWork
from headrace._model.views.jobs import (
    JobsPage,
    JobView,
    KindsPage,
    KindView,
    Moment,
    ScheduleView,
    WorkerView,
)
from headrace._model.views.overview import Attention, Overview, ServerFacts, Totals
from headrace._model.views.queues import QueuePage, QueueView, ShardView
from headrace._model.views.texts import Payload
from headrace._model.views.trends import TrendPoint, Trends

__all__ = [
    "Activity",
    "ActivityPoint",
    "Admin",
    "AsyncAdmin",
    "AsyncInspector",
    "Attempt",
    "Attention",
    "Bulk",
    "Child",
    "ChildFacts",
    "ChildView",
    "Children",
    "DeadGroup",
    "DeadPage",
    "Ends",
    "First",
    "FlowView",
    "Inspector",
    "JobView",
    "JobsPage",
    "KindView",
    "KindsPage",
    "LimitView",
    "MachineWork",
    "Moment",
    "OtherTerms",
    "Overview",
    "Payload",
    "Place",
    "Progress",
    "QueuePage",
    "QueueView",
    "Repairs",
    "Resharding",
    "RunState",
    "RunView",
    "RunsPage",
    "ScheduleView",
    "ServerFacts",
    "Shard",
    "ShardView",
    "Share",
    "SlotView",
    "StageView",
    "Step",
    "Tenants",
    "Totals",
    "TrendPoint",
    "Trends",
    "WorkerFacts",
    "WorkerState",
    "WorkerView",
    "reason_key",
]

for _name in __all__:  # where users find them: in reprs, pickles and pydoc
    globals()[_name].__module__ = __name__
