"""Pages for the browser: queues, jobs, workers, schedules, dead letters and flows. Extra `web`.

from headrace.web import app

site = app("redis://localhost:6379/0", access=lambda request: "read")  # an ASGI application, to be mounted
"""

from headrace._model.verbs import ACTIONS
from headrace.errors import requiring

with requiring("headrace.web", "web", "jinja2", "starlette"):
    from headrace._ui.web.app import app

__all__ = ["ACTIONS", "app"]
