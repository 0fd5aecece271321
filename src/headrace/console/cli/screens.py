"""The pages of `headrace web`, and the terminal of `headrace top`."""

from __future__ import annotations

import logging
import socket
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import reduce
from ipaddress import ip_address
from typing import Annotated, Any

import redis
import typer

from headrace.console.cli.console import connected, module_of, reported, say, server, terminated
from headrace.console.cli.look import show_stats, views_of
from headrace.console.cli.options import Json, Names, Namespaces, Url
from headrace.console.cli.output import print_out
from headrace.console.cli.showcase import running
from headrace.errors import ConfigurationError, requiring
from headrace.inspect import Inspector
from headrace.platform import Address


def web(
    host: Annotated[
        str, typer.Option(help="A loopback address; there is no access rule for others.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any port.")] = 8700,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Show everything, do nothing.")
    ] = False,
    redact: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            show_default=False,
            help="A function that returns the text to show.",
        ),
    ] = None,
    demo: Annotated[
        bool, typer.Option("--demo", help="Show a demonstration on a private server.")
    ] = False,
    url: Url = None,
    namespace: Namespaces = "headrace",
) -> None:
    """Watch queues, jobs and workers in the browser, and act.

    Needs the extra web, and with --demo the extra embedded.

    The address that is printed opens the pages as long as the program runs: each browser that has
    it may act. Actions are logged to standard error.
    """
    with reported(), ExitStack() as stack:
        stack.enter_context(terminated())
        if not _is_loopback(host):
            raise ConfigurationError(
                f"--host {host}: only this machine is served, as there is no rule for who may do what; "
                "mount headrace.web.app(access=…) in an application of yours"
            )
        with requiring("headrace web", "web", "jinja2", "starlette", "uvicorn"):
            import uvicorn

            from headrace.console.web.access import TokenAuth
            from headrace.console.web.app import pages_of
        hide = None if redact is None else _redacting(redact)
        address = stack.enter_context(running()) if demo else server(url)
        stack.enter_context(connected(address))  # is there, and stays if it is an embedded one
        listening = stack.enter_context(_listen(host, port))
        name = f"[{host}]" if ":" in host else host
        auth = TokenAuth(name, listening.getsockname()[1], read_only=read_only)
        names = namespace.split(",")
        pages = pages_of({"url": address}, names, auth.access, hide, auth=auth)
        print_out(f"http://{name}:{auth.port}/?token={auth.token}")
        sys.stdout.flush()  # a reader of a pipe or a file would get it at the end only
        say("serves the pages there; Ctrl-C ends it")
        _log_actions()
        config: Any = uvicorn.Config(
            pages,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=2,
        )
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def _redacting(target: str) -> Callable[..., Any]:
    try:
        module, path = module_of(target, "redact")
    except ConfigurationError as error:
        raise ConfigurationError(f"--redact {target}: {error}") from None
    found: Any = reduce(lambda of, name: getattr(of, name, None), path.split("."), module)
    if not callable(found):
        raise ConfigurationError(
            f"--redact {target}: module {module.__name__!r} has no function {path!r}"
        )
    return found  # type: ignore[no-any-return]


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server(
            (host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET
        )
    except OSError as error:
        raise ConfigurationError(f"--port {port}: {error.strerror}") from None


def _log_actions() -> None:
    log = logging.getLogger("headrace")
    lines = logging.StreamHandler()
    if log.getEffectiveLevel() > logging.INFO:
        log.setLevel(logging.INFO)
    lines.addFilter(lambda record: getattr(record, "event", "") == "web_action")
    lines.setFormatter(logging.Formatter("headrace: %(message)s"))
    log.addHandler(lines)


def top(
    names: Names = None,
    once: Annotated[
        bool,
        typer.Option(
            "--once", help="Print the queues, with their rates, and end; without the extra."
        ),
    ] = False,
    every: Annotated[
        float, typer.Option(min=0.2, max=3600, help="Seconds between two looks.")
    ] = 2.0,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Show everything, do nothing.")
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Show a demonstration on a private server.")
    ] = False,
    in_json: Json = False,
    url: Url = None,
    namespace: Namespaces = "headrace",
) -> None:
    """Watch queues, workers and jobs in the terminal, and act.

    Needs the extra top, and with --demo the extra embedded.

    The key ? shows the others. Without a terminal, and without --once, it is refused with exit code
    2.

    With --json, --once prints one object, by queue: the fields of `stats --json`, lag (seconds that
    the oldest of the next jobs has been there) and rates (enqueued and completed, jobs a second).
    """
    with reported(), ExitStack() as stack:
        if not once and (in_json or names):
            raise ConfigurationError("--json, and names of queues, are for headrace top --once")
        stack.enter_context(terminated())
        address = stack.enter_context(running()) if demo else server(url)
        # is there, and stays if it is an embedded one
        client = stack.enter_context(connected(address))
        if once:
            _once(client, namespace, names, in_json)
            return
        with requiring("headrace top", "top", "textual", "rich"):
            from headrace.console.top.app import run
        if not (sys.stdin.isatty() and sys.stdout.isatty()):
            raise ConfigurationError(
                "headrace top needs a terminal; headrace top --once needs none"
            )
        run(address, namespace.split(","), Address(address).shown, every=every, read_only=read_only)


def _once(client: redis.Redis, namespace: str, names: list[str] | None, in_json: bool) -> None:
    with Inspector(client=client, namespace=namespace, fresh=0.0) as inspector:
        views_of(inspector, client, names)
        time.sleep(1.0)  # rates need two readings
        show_stats(inspector, views_of(inspector, client, names), in_json, rates=True)
