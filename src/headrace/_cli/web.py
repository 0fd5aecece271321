"""`headrace web`: the pages on a loopback address, opened by the address that is printed."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from ipaddress import ip_address
from typing import Annotated, Any

import typer

from headrace._cli.console import connected, reported, say, server, terminated
from headrace._cli.importing import function_of
from headrace._cli.options import Namespace, Url
from headrace._cli.output import print_out
from headrace._cli.web_demo import running
from headrace.errors import ConfigurationError, without_extra

STOP_WITHIN_S = 2  # seconds that requests under way have


def web(
    host: Annotated[str, typer.Option(help="A loopback address.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any port.")] = 8700,
    read_only: Annotated[bool, typer.Option("--read-only", help="Show everything, do nothing.")] = False,
    redact: Annotated[
        str | None,
        typer.Option(metavar="MODULE:FUNCTION", show_default=False, help="What may be shown of a text of a job."),
    ] = None,
    demo: Annotated[bool, typer.Option("--demo", help="Show a demonstration on a server of its own.")] = False,
    url: Url = None,
    namespace: Namespace = "headrace",
) -> None:
    """Watch queues, jobs and workers in the browser, and act.

    The address that is printed opens the pages once, in one browser.
    """
    with reported(), ExitStack() as stack:
        stack.enter_context(terminated())
        if not _is_loopback(host):
            raise ConfigurationError(
                f"--host {host}: only this machine is served, as there is no rule for who may do what; "
                "mount headrace.web.app(access=…) in an application of yours"
            )
        try:
            import uvicorn

            from headrace._ui.web.access import TokenAuth
            from headrace._ui.web.app import Pages
        except ModuleNotFoundError as error:
            if (error.name or "").partition(".")[0] not in {"jinja2", "starlette", "uvicorn"}:
                raise
            raise ConfigurationError(without_extra("headrace web", "web")) from None
        hide = None if redact is None else _redacting(redact)
        address = stack.enter_context(running()) if demo else server(url)
        stack.enter_context(connected(address))  # is there, and stays if it is an embedded one
        listening = stack.enter_context(_listen(host, port))
        shown = f"[{host}]" if ":" in host else host
        auth = TokenAuth(shown, listening.getsockname()[1], read_only=read_only)
        pages = Pages(address, None, namespace, auth.access, hide, None, "", auth)
        print_out(f"http://{shown}:{auth.port}/?token={auth.token}")
        sys.stdout.flush()  # it is wanted now, and a pipe's or a file's reader would have it at the end
        say("serves the pages there, to one browser; Ctrl-C ends it")
        _log_actions()
        config: Any = uvicorn.Config(
            pages, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=STOP_WITHIN_S
        )
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[listening])


def _redacting(target: str) -> Callable[..., Any]:
    try:
        return function_of(target)
    except ConfigurationError as error:
        raise ConfigurationError(f"--redact {target}: {error}") from None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def _listen(host: str, port: int) -> socket.socket:
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise ConfigurationError(f"--port {port}: {error.strerror}") from None


def _log_actions() -> None:
    """Log the actions taken in the pages to standard error."""
    log, lines = logging.getLogger("headrace"), logging.StreamHandler()
    if log.getEffectiveLevel() > logging.INFO:
        log.setLevel(logging.INFO)
    lines.addFilter(lambda record: getattr(record, "event", "") == "web_action")
    lines.setFormatter(logging.Formatter("headrace: %(message)s"))
    log.addHandler(lines)
