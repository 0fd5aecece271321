"""Options and arguments that commands share, and groups of commands.

Every option may stand before the command, too: the program and its groups take them as defaults of
their commands.
"""

from __future__ import annotations

import inspect
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Annotated, Any, Concatenate, ParamSpec

import redis
import typer
from typer.core import TyperGroup

from headrace import Queue
from headrace.console.cli.console import connected, opened, reported, server
from headrace.errors import ConfigurationError
from headrace.platform import Discovery, check_names, client_of, visible

P = ParamSpec("P")
COMPLETE_WITHIN_S = 0.5  # for each answer of the server, and for the scan: a shell waits for us


def queue_names(context: typer.Context, incomplete: str) -> list[str]:
    """List the names of queues with this beginning that a scan finds in time, or none without a
    server.

    A private server is not started for it.
    """
    found: set[str] = set()
    until = time.monotonic() + COMPLETE_WITHIN_S
    with suppress(Exception):  # an error message would stand in the middle of the user's line
        url = server(_given(context, "url"))
        if not url.startswith("embedded:"):
            timeouts = {
                "socket_timeout": COMPLETE_WITHIN_S,
                "socket_connect_timeout": COMPLETE_WITHIN_S,
            }
            with client_of(url, **timeouts) as client:
                for name in Discovery(client, _given(context, "namespace") or "headrace").names():
                    found.add(name)
                    if time.monotonic() > until:
                        break
    return sorted(name for name in found if name.startswith(incomplete))


def _given(context: typer.Context | None, name: str) -> str | None:
    while context is not None:
        source: Any = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            return str(context.params[name])
        context = context.parent  # type: ignore[assignment] # typer's are click's
    return None


def _each_an_id(ids: list[str] | None) -> list[str]:
    for value in ids or ():
        try:
            check_names(job=value)
        except ValueError as error:
            raise typer.BadParameter(str(error)) from None
    return ids or []  # some versions of typer take no None


Url = Annotated[
    str | None,
    typer.Option(
        help="redis[s][+cluster]://…, unix://… or embedded:DIR; else HEADRACE_URL, else REDIS_URL."
    ),
]
Namespace = Annotated[str, typer.Option(help="The first part of all keys.")]
Namespaces = Annotated[
    str, typer.Option(help="The first part of all keys; of several with commas between them.")
]
Name = Annotated[
    str, typer.Argument(metavar="QUEUE", show_default=False, autocompletion=queue_names)
]
Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="QUEUE", help="All, if none is given.", autocompletion=queue_names),
]
Ids = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="These only; all, if none is given.", callback=_each_an_id),
]
IdsOrQueue = Annotated[
    list[str] | None,
    typer.Argument(metavar="ID", help="The queue itself, if none is given.", callback=_each_an_id),
]
SomeIds = Annotated[
    list[str], typer.Argument(metavar="ID", show_default=False, callback=_each_an_id)
]
Reason = Annotated[
    str, typer.Option(show_default=False, help="All with this text in the reason, instead of ids.")
]
Kind = Annotated[str, typer.Option(show_default=False, help="All of this kind, instead of ids.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON value; of a listing, one a line.")]
Jsonl = Annotated[bool, typer.Option("--json", "--jsonl", help="A JSON object a line.")]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
Create = Annotated[bool, typer.Option("--create", help="If there is no such queue, make it.")]
Limit = Annotated[
    int | None,
    typer.Option(
        min=1, show_default=False, help="So many at most; else 100 on a terminal, all elsewhere."
    ),
]


class Verbs(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and args[0] not in ("--help", "--version"):
            first = next((i for i, word in enumerate(args) if word in self.commands), None)
            if first is None or not args[0].startswith("-"):
                args = ["list", *args]
        return super().parse_args(ctx, args)


def verbs(about: str) -> typer.Typer:
    group = typer.Typer(cls=Verbs, rich_markup_mode=None, no_args_is_help=True, help=about)

    @group.callback()
    def options(
        context: typer.Context,
        in_json: Json = False,
        yes: Yes = False,
        url: Url = None,
        namespace: Namespace = "",
    ) -> None:  # pyright: ignore[reportUnusedFunction]
        set_defaults(context, in_json=in_json, yes=yes, url=url, namespace=namespace or None)

    return group


def set_defaults(context: typer.Context, **options: object) -> None:
    given = {name: value for name, value in options.items() if value not in (None, False)}
    defaults: dict[str, Any] = {**(context.default_map or {}), **given}
    for name, command in getattr(context.command, "commands", {}).items():
        below = getattr(command, "commands", {})
        defaults[name] = {
            **defaults.get(name, {}),
            **given,
            **{other: dict(given) for other in below},
        }
    context.default_map = defaults


def confirm(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError(
            "give --yes: this destroys something, and there is no terminal to ask on"
        )
    typer.confirm(visible(question), abort=True, err=True)


# -- commands of a server, and of a queue ----------------------------------------------------------


def on_server(function: Callable[Concatenate[redis.Redis, str, P], None]) -> Callable[..., None]:
    """Make a command with --url and --namespace.

    *function* gets a client, the namespace, and the command's own parameters. Errors become one
    line and an exit code.
    """

    @wraps(function)
    def command(url: str | None, namespace: str, *args: P.args, **own: P.kwargs) -> None:
        with reported(), connected(server(url)) as client:
            function(client, namespace, *args, **own)

    return _with_options(command, function, {}, leading=2)


def on_queue(function: Callable[Concatenate[Queue, P], None]) -> Callable[..., None]:
    """Make a command with QUEUE, --url and --namespace.

    *function* gets the queue, which must exist, and the command's own parameters. Errors become one
    line and an exit code.
    """

    @wraps(function)
    def command(name: str, url: str | None, namespace: str, *args: P.args, **own: P.kwargs) -> None:
        with reported(), opened(name, url, namespace) as queue:
            function(queue, *args, **own)

    return _with_options(command, function, {"name": (Name, inspect.Parameter.empty)}, leading=1)


def _with_options(
    command: Callable[..., None], function: Callable[..., None], first: dict[str, Any], leading: int
) -> Callable[..., None]:
    """Give typer the parameters of *command*.

    They are *first*, then all of *function* but the *leading* ones, then the server's.
    """
    own = list(inspect.signature(function, eval_str=True).parameters.values())[leading:]
    given = first | {one.name: (one.annotation, one.default) for one in own}
    given |= {"url": (Url, None), "namespace": (Namespace, "headrace")}
    command.__annotations__ = {name: annotation for name, (annotation, _) in given.items()}
    command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default
            )
            for name, (annotation, default) in given.items()
        ]
    )
    return command
