"""The program's commands, all of them. Results go to standard output, plain unless that is a terminal; all else to
stderr.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Annotated

import typer

import headrace
from headrace._cli import changing, dead, flows, looking, schedules
from headrace._cli.console import drop_unwritten, reported
from headrace._cli.demo import demo as run_demo
from headrace._cli.doctor import doctor
from headrace._cli.enqueue import enqueue
from headrace._cli.logs import LogFormat, LogLevel, Logs
from headrace._cli.options import Json, Namespace, Url, Yes, hand_on
from headrace._cli.output import print_out
from headrace._cli.processes import Supervisor
from headrace._cli.top import top
from headrace._cli.web import web
from headrace._model.verbs import VERBS
from headrace._protocol.export import protocol

app = typer.Typer(
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    help="A reliable, atomic work queue on Redis Streams. Options may stand before the command or behind it.",
)


@app.callback(invoke_without_command=True)
def program(
    context: typer.Context,
    version: Annotated[bool, typer.Option("--version", help="Show the version and exit.")] = False,
    in_json: Json = False,
    yes: Yes = False,
    url: Url = None,
    namespace: Namespace = "",
) -> None:
    """Print the version, or the help if no command is given."""
    hand_on(context, in_json=in_json, yes=yes, url=url, namespace=namespace or None)
    if version:
        typer.echo(headrace.__version__)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def work(
    targets: Annotated[list[str], typer.Argument(metavar="MODULE:WORKER", show_default=False)],
    processes: Annotated[int, typer.Option("--processes", "-p", min=1, max=1000, help="How many for each.")] = 1,
    url: Annotated[str | None, typer.Option(help="For a worker that names no server: sets HEADRACE_URL.")] = None,
    max_outage: Annotated[
        float | None,
        typer.Option(min=0.001, show_default=False, help="Seconds to wait for a server that went away; else for ever."),
    ] = None,
    burst: Annotated[bool, typer.Option("--burst", help="End when the queues are empty but for dead letters.")] = False,
    reload: Annotated[bool, typer.Option("--reload", help="Start again when a module here has changed.")] = False,
    health_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, show_default=False, help="Serve /live and /ready there; 0: any port."),
    ] = None,
    metrics_port: Annotated[
        int | None,
        typer.Option(min=0, max=65535, show_default=False, help="Serve /metrics there, for each process one port on."),
    ] = None,
    log_level: Annotated[
        LogLevel | None,
        typer.Option(case_sensitive=False, show_default=False, help="What is logged: info, if not given."),
    ] = None,
    log_format: Annotated[
        LogFormat | None,
        typer.Option(case_sensitive=False, show_default=False, help="text, if not given; json: an object a line."),
    ] = None,
) -> None:
    """Run workers in processes. One that dies is started again.

    MODULE is imported from the working directory or Python's path; WORKER is a headrace.Worker or AsyncWorker in it.
    On SIGTERM or SIGINT (Ctrl-C) jobs under way are finished; on a second signal they are given back. Its log lines go
    to standard error; an application that has set up logging itself is left alone.
    """
    with reported():
        if url is not None:
            os.environ["HEADRACE_URL"] = url
        serving = {"health_port": health_port, "metrics_port": metrics_port}
        chosen, logs = list(dict.fromkeys(targets)), Logs(log_level, log_format)
        status = Supervisor(chosen, processes, max_outage, logs, burst=burst, reload=reload, **serving).run()
        drop_unwritten()
        raise typer.Exit(status)


def show_protocol(in_json: Annotated[bool, typer.Option("--json", hidden=True)] = True) -> None:  # noqa: ARG001
    """Print the scripts for clients in other languages.

    One JSON object: the scripts in full, names, rules, defaults.
    """
    with reported():
        print_out(json.dumps(protocol(), indent=2))


def demo(
    url: Annotated[str | None, typer.Option(help="Any server; a private one if none is given.")] = None,
    limit: Annotated[int | None, typer.Option(hidden=True, min=1)] = None,
) -> None:
    """Parse Python's standard library as jobs.

    A worker is killed half-way, and the results are compared with a plain single pass.
    """
    with reported():
        raise typer.Exit(run_demo(url, limit))


COMMANDS: dict[str, Callable[..., None]] = {
    "enqueue": enqueue,
    "work": work,
    "queues": looking.queues,
    "stats": looking.stats,
    "shards": looking.shards,
    "trends": looking.trends,
    "workers": looking.workers,
    "list": looking.list_jobs,
    "find": looking.find,
    "show": looking.show_job,
    "result": looking.result,
    "events": looking.events,
    **{name.replace("_", "-"): getattr(changing, name) for name, verb in VERBS.items() if not verb.command},
    "doctor": doctor,
    "top": top,
    "web": web,
    "protocol": show_protocol,
    "demo": demo,
}
for command, function in COMMANDS.items():
    app.command(command)(function)
for name, module in {"dead": dead, "schedules": schedules, "flows": flows}.items():
    app.add_typer(module.group, name=name)
