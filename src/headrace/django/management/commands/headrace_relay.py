"""`manage.py headrace_relay` moves the rows of a backend's outbox to their queues, or lists the
rows set aside.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from headrace.django._commands import relay
from headrace.errors import HeadraceError

_base: Any = import_module("django.core.management.base")


class Command(_base.BaseCommand):  # type: ignore[misc]  # pyright: ignore[reportUntypedBaseClass]
    help = "Move the rows of the outbox to their queues, until SIGTERM or Ctrl-C; headrace_worker does so, too."

    def add_arguments(self, parser: Any) -> None:
        add = parser.add_argument
        add("--backend", default="default", help="Alias of the backend in TASKS; else default.")
        add(
            "--queue",
            action="append",
            default=[],
            help="A queue of QUEUES; may be repeated. Else all.",
        )
        add("--refused", action="store_true", help="List the rows that were set aside, and end.")
        add("--retry-refused", action="store_true", help="Let them be tried again, and end.")
        add("--json", action="store_true", help="Print JSON: an object a line.")

    def handle(self, **options: Any) -> None:
        chosen = {name: options[name] for name in ("refused", "retry_refused", "json")}
        try:
            relay(options["backend"], options["queue"], **chosen)
        except (HeadraceError, ValueError) as error:
            raise _base.CommandError(str(error)) from None
