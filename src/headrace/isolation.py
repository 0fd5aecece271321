"""Handlers in child processes. See docs/how-to/isolate-a-handler.md.

@worker.handler("renders", isolate=Isolation(processes=4, recycle_jobs=1000), deadline=60)
def render(job: Job) -> bytes: ...
"""

from headrace._model.isolation import Isolation
from headrace.errors import Killed

__all__ = ["Isolation", "Killed"]
