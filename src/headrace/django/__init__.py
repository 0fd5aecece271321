"""Django's tasks on headrace. Extra `django`.

    INSTALLED_APPS += ["headrace.django"]
    OPTIONS = {"url": "redis://localhost:6379/0"}
    TASKS = {"default": {"BACKEND": "headrace.django.TaskBackend", "OPTIONS": OPTIONS}}

`manage.py headrace_worker` runs the tasks. `manage.py headrace` is the command line. Django's admin
has the pages. See docs/how-to/use-in-django.md.
"""

from headrace.django._backend import TaskBackend
from headrace.django._running import worker_of as worker

__all__ = ["TaskBackend", "worker"]

TaskBackend.__module__ = __name__
