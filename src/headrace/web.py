"""Pages for the browser: queues, jobs, workers, schedules, dead letters and flows. Extra `web`.

from headrace.web import app

site = app("redis://localhost:6379/0", access=lambda request: "read")  # an ASGI application, to be mounted
"""

from headrace.errors import ConfigurationError, without_extra

try:
    from headrace._model.verbs import ACTIONS
    from headrace._ui.web.app import app
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in {"jinja2", "starlette"}:
        raise
    raise ConfigurationError(without_extra("headrace.web", "web")) from None

__all__ = ["ACTIONS", "app"]
