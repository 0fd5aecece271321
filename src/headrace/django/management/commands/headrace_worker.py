"""`manage.py headrace_worker` runs tasks, in processes that are started again when they die."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

from headrace.django._commands import work
from headrace.errors import HeadraceError

_base: Any = import_module("django.core.management.base")


class Command(_base.BaseCommand):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    help = "Run tasks of a headrace.django.TaskBackend. On SIGTERM or Ctrl-C, tasks under way are finished."

    def add_arguments(self, parser: Any) -> None:
        add = parser.add_argument
        add("--backend", default="default", help="Alias of the backend in TASKS; else default.")
        add(
            "--queue",
            action="append",
            default=[],
            help="A queue of QUEUES; may be repeated. Else all.",
        )
        add("--processes", "-p", type=int, default=1, help="How many processes; else 1.")
        add(
            "--concurrency",
            type=int,
            help="Tasks at once, of each queue in each process; else as OPTIONS says.",
        )
        add("--reload", action="store_true", help="Start again when a module here has changed.")
        add(
            "--burst",
            action="store_true",
            help="End when the queues are empty but for failed tasks.",
        )
        add(
            "--isolate",
            action="store_true",
            help="Run each task in a child process, which is killed at its deadline.",
        )
        add("--recycle-jobs", type=int, help="Replace a child process after so many tasks.")
        add(
            "--recycle-mb",
            type=float,
            help="Replace a child process that has more MiB of memory: 64 or more.",
        )
        add("--health-port", type=int, help="Serve /live and /ready there; 0: any port.")
        add("--metrics-port", type=int, help="Serve /metrics there, for each process one port on.")
        add(
            "--max-outage",
            type=float,
            help="Seconds to wait for a server that went away; else for ever.",
        )
        add("--log-level", help="The least level that is logged: info, if not given.")
        add(
            "--log-format",
            choices=["text", "json"],
            help="text, if not given; json: an object a line.",
        )

    def handle(self, **options: Any) -> None:
        """Run until all processes have ended. Exits with their code."""
        if options["processes"] < 1:
            raise _base.CommandError("--processes: give 1 or more")
        try:
            code = work(
                options["backend"],
                options["queue"],
                options["concurrency"],
                options["processes"],
                **{
                    name: options[name]
                    for name in (
                        "reload",
                        "burst",
                        "health_port",
                        "metrics_port",
                        "isolate",
                        "recycle_jobs",
                        "recycle_mb",
                        "max_outage",
                        "log_level",
                        "log_format",
                    )
                },
            )
        except (HeadraceError, ValueError) as error:
            raise _base.CommandError(str(error)) from None
        if code:
            sys.exit(code)
