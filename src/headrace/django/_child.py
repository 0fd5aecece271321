"""The worker of a process of `manage.py headrace_worker`. The command's environment has its
options.
"""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from headrace.django._commands import VARIABLE
from headrace.django._running import worker_of


def write_once() -> None:
    """Keep each line of the log from standing there twice.

    If the process is about to write all lines, the handler is taken away with which Django's
    defaults write lines under DEBUG.
    """
    handlers = [*logging.getLogger("headrace").handlers, *logging.root.handlers]
    others = [one for one in handlers if not isinstance(one, logging.NullHandler)]
    django = logging.getLogger("django")
    theirs: list[Any] = [] if others else list(django.handlers)
    for handler in theirs:
        if handler.__class__ is logging.StreamHandler:  # not one that sends mails
            django.removeHandler(handler)


worker = worker_of(**json.loads(os.environ.get(VARIABLE, "{}")))
write_once()
