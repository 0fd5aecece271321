"""Log events with stable names, on the logger `headrace`. Where they go is for the program to say, and else `lines`.

A message is `<event>: <words>`; its record has the attributes `event`, `queue`, `job_id`, `attempt`, `worker` and
`error` (as far as there are any), and `trace_id` and `span_id` of the span that it belongs to. Above DEBUG, nothing is
logged of a job that ends well.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from typing import Any

from headrace._model.job import Claim
from headrace._telemetry.tracing import ids
from headrace.errors import said, users

log = logging.getLogger("headrace")
EVENTS = {  # their levels
    "job_failed": logging.WARNING,
    "job_put_back": logging.INFO,
    "job_released": logging.DEBUG,
    "releases_slowed": logging.WARNING,
    "job_dead_lettered": logging.ERROR,
    "result_dropped": logging.ERROR,
    "lease_lost": logging.WARNING,
    "loop_blocked": logging.WARNING,
    "loop_unblocked": logging.INFO,
    "worker_started": logging.INFO,
    "worker_stopping": logging.INFO,
    "worker_stopped": logging.INFO,
    "leases_left": logging.ERROR,
    "worker_declared_dead": logging.ERROR,
    "peers_declared_dead": logging.WARNING,
    "jobs_reclaimed": logging.INFO,
    "group_created": logging.INFO,
    "connection_lost": logging.WARNING,
    "connection_restored": logging.INFO,
    "primary_changed": logging.INFO,
    "not_durable": logging.WARNING,
    "not_heard": logging.WARNING,
    "server_clock_jumped": logging.WARNING,
    "levels_unknown": logging.ERROR,
    "schedule_failed": logging.ERROR,
    "schedule_ended": logging.INFO,
    "declaration_differs": logging.WARNING,
    "handing_failed": logging.ERROR,
    "hook_failed": logging.ERROR,
    "web_action": logging.INFO,
    "role_failed": logging.ERROR,
    "tracing_failed": logging.WARNING,
}


def say(
    event: str, words: str, *args: object, claim: Claim | None = None, span: Any = None,
    error: BaseException | None = None, level: int | None = None, **fields: Any,
) -> None:  # fmt: skip
    """Log an event. *claim*: the job it is about; *span*: the span it belongs to, by default the current one.

    An exception of a log handler ends no worker.
    """
    level = EVENTS[event] if level is None else level
    if not log.isEnabledFor(level):
        return
    if claim is not None:
        job = claim.job
        fields = {"queue": job.queue, "job_id": job.id, "attempt": job.attempt, "worker": claim.worker, **fields}
    if error is not None:
        fields.setdefault("error", said(error))
    text = f"{event}: {words}"
    with suppress(Exception):
        raised = None if error is None else (type(error), error, users(error))
        log.log(level, text, *args, exc_info=raised, extra={"event": event, **fields, **ids(span)})
