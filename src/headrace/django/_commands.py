"""The commands of `manage.py`, without Django's part."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any

from headrace.django._backend import backend_of, outbox_of
from headrace.django._running import queues_of, worker_of
from headrace.errors import ConfigurationError, requiring

VARIABLE = "HEADRACE_DJANGO_WORKER"  # of the environment: the arguments of `worker_of`, in JSON
TARGET = "headrace.django._child:worker"


def work(
    alias: str,
    queues: Sequence[str],
    concurrency: int | None,
    processes: int,
    *,
    reload: bool,
    health_port: int | None,
    **options: Any,
) -> int:
    """Run the processes of `headrace_worker` until they end. Return the exit code. Raises
    `ConfigurationError`.
    """
    with requiring("headrace_worker", "cli", "typer", "rich"):
        from headrace.console.cli.child import Options
        from headrace.console.cli.work import Supervisor
    # refuses wrong settings here, once, before any process starts
    worker_of(alias, queues, concurrency)
    chosen = Options(**options)
    chosen.limits()
    given = {"alias": alias, "queues": list(queues), "concurrency": concurrency}
    paths = [sys.path[0], *filter(None, [os.environ.get("PYTHONPATH")])]  # the folder of manage.py
    os.environ |= {VARIABLE: json.dumps(given), "PYTHONPATH": os.pathsep.join(paths)}
    return Supervisor([TARGET], processes, chosen, reload, health_port).run()


def relay(
    alias: str, queues: Sequence[str], *, refused: bool, retry_refused: bool, json: bool
) -> None:
    """Relay the outboxes of a backend, or list the rows that were set aside, or let these be tried
    again.

    Raises `ConfigurationError` for a backend without an outbox, and for a queue that it does not
    have.
    """
    with requiring("headrace_relay", "cli", "typer", "rich"):
        from headrace.console.cli.relay import serve, set_aside
    backend = backend_of(alias)
    options = backend.settings
    wanted = queues_of(backend, queues)
    if not options.outbox:
        raise ConfigurationError(
            f"TASKS[{alias!r}]['OPTIONS'] has no outbox: give it 'outbox': True"
        )
    outboxes = [outbox_of(options, backend.queue(name)) for name in wanted]
    if refused or retry_refused:
        set_aside(outboxes, options.relayed_by(), retry_refused, json)
    else:
        serve(outboxes, options.relayed_by(), options.poll)


def program(arguments: Sequence[str]) -> None:
    """Run the command line on the server and namespace of the backend `default`, unless *arguments*
    name others."""
    from headrace.console.cli import main

    options = backend_of("default").settings
    if options.url is not None:
        os.environ["HEADRACE_URL"] = options.url
    namespace = [] if options.namespace == "headrace" else ["--namespace", options.namespace]
    sys.argv = ["headrace", *namespace, *arguments]
    main()
