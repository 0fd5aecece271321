"""Pages for the browser. They show queues, jobs, workers, schedules, dead letters and flows.
Extra `web`.

    from headrace.web import app

    # An ASGI application, to be mounted.
    site = app("redis://localhost:6379/0", access=lambda request: "read")

`wsgi(site)` is the same for WSGI.
"""

from headrace.errors import requiring

with requiring("headrace.web", "web", "jinja2", "starlette"):
    from headrace.console.actions import ACTIONS
    from headrace.console.web.app import app
    from headrace.console.web.bridge import wsgi

__all__ = ["ACTIONS", "app", "wsgi"]
