"""All commands of the program.

Results go to standard output, plain unless that is a terminal. All else goes to standard error.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Annotated

import typer

import headrace
from headrace.console.cli import change, dead, flows, look, runs, schedules
from headrace.console.cli.console import reported
from headrace.console.cli.demo import demo
from headrace.console.cli.enqueue import enqueue
from headrace.console.cli.options import Json, Namespace, Url, Yes, set_defaults
from headrace.console.cli.output import print_out
from headrace.console.cli.relay import relay
from headrace.console.cli.screens import top, web
from headrace.console.cli.torture import torture
from headrace.console.cli.work import work
from headrace.platform import VERBS, protocol

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
    set_defaults(context, in_json=in_json, yes=yes, url=url, namespace=namespace or None)
    if version:
        typer.echo(headrace.__version__)
    elif context.invoked_subcommand is None:
        typer.echo(context.get_help())


def show_protocol(in_json: Annotated[bool, typer.Option("--json", hidden=True)] = True) -> None:  # noqa: ARG001
    """Print the scripts for clients in other languages.

    One JSON object: the scripts in full, with their hashes, keys and arguments, and every fixed
    name, rule, limit and default.
    """
    with reported():
        print_out(json.dumps(protocol(), indent=2))


COMMANDS: dict[str, Callable[..., None]] = {
    "enqueue": enqueue,
    "work": work,
    "relay": relay,
    "queues": look.queues,
    "stats": look.stats,
    "shards": look.shards,
    "shares": look.shares,
    "trends": look.trends,
    "workers": look.workers,
    "list": look.list_jobs,
    "find": look.find,
    "show": look.show_job,
    "result": look.result,
    "events": look.events,
    **{
        name.replace("_", "-"): getattr(change, name)
        for name, verb in VERBS.items()
        if not verb.command
    },
    "replay": runs.replay,
    "doctor": look.doctor,
    "top": top,
    "web": web,
    "protocol": show_protocol,
    "demo": demo,
    "torture": torture,
}
for command, function in COMMANDS.items():
    app.command(command)(function)
for name, module in {"dead": dead, "schedules": schedules, "flows": flows, "runs": runs}.items():
    app.add_typer(module.group, name=name)
