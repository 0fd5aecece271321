"""Opening the queue that a command names: one that is there, unless it may be made."""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from difflib import get_close_matches
from itertools import islice
from typing import Any, Unpack

import redis
import typer

from headrace._api.sync.discovery import shards_of, table_of
from headrace._api.sync.queue import Queue
from headrace._cli.console import connected, server
from headrace._model.settings import QueueOptions
from headrace._model.views import visible
from headrace._protocol.keys import Keys, pattern, queue_of
from headrace._protocol.replies import text
from headrace.errors import ConfigurationError

SIGNS = ("jobs", "stats", "delayed", "schedules", "dead")  # parts of which a queue has one at least
LOOKED_AT = 10_000  # keys, for the name that was meant


@contextmanager
def opened(
    name: str,
    url: str | None,
    namespace: str,
    *,
    create: bool | None = None,
    anew: int = 1,
    **options: Unpack[QueueOptions],
) -> Generator[Queue, None, None]:
    """Yield the queue, with all its levels; one that is made has *anew*. Refuses one that is not there, unless
    *create* (`None`: no such option).
    """
    Keys.of(name, namespace)
    with connected(server(url)) as client:
        if not require(client, name, namespace, create=create):
            options["priorities"] = max(anew, options.get("priorities", 1))
        with levelled(client, name, namespace, **options) as queue:
            yield queue


def levelled(client: redis.Redis, name: str, namespace: str, **options: Unpack[QueueOptions]) -> Queue:
    """Open a queue with its shards, and as many priority levels as it has, or as are asked for, if that is more."""
    options["shards"] = shards_of(client, name, namespace)
    with Queue(name, client=client, namespace=namespace, shards=options["shards"]) as plain:
        options["priorities"] = max(plain.admin.levels(), options.get("priorities", 1))
    return Queue(name, client=client, namespace=namespace, **options)


def require(client: redis.Redis, name: str, namespace: str, *, create: bool | None = None) -> bool:
    """Tell whether there is a queue of that name. Raises `ConfigurationError`, which names the nearest, if there has to
    be.
    """
    keys = Keys.of(name, namespace)
    anything: Any = client  # exists and scan_iter are half annotated
    if anything.exists(*map(keys.key, SIGNS)):
        return True
    table = table_of(client, name, namespace)
    some = [keys.at(part) for part in table.shards] if table is not None else []
    if any(anything.exists(*map(one.key, SIGNS)) for one in some):
        return True
    if create:
        return False
    names: set[str] = set()
    with suppress(redis.ResponseError):  # a user that may not SCAN
        seen: Iterable[Any] = islice(anything.scan_iter(pattern(namespace), count=1000), LOOKED_AT)
        names = {found for key in seen if (found := queue_of(text(key)))}
    near = get_close_matches(name, names, 1)
    meant = f", did you mean {near[0]}?" if near else f" in namespace {namespace}"
    raise ConfigurationError(f"there is no queue {name}{meant}" + ("" if create is None else " (--create makes it)"))


def require_plain(client: redis.Redis, name: str, namespace: str) -> None:
    """Like `require`; also refuses a sharded queue, for commands that look at one stream of jobs."""
    require(client, name, namespace)
    if (shards := shards_of(client, name, namespace)) > 1:
        raise ConfigurationError(f"{name} has {shards} shards: see headrace shards {name}")


def confirm(question: str, yes: bool) -> None:
    """Ask before something is destroyed, unless *yes*. Raises `ConfigurationError` without a terminal."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise ConfigurationError("give --yes: this destroys something, and there is no terminal to ask on")
    typer.confirm(visible(question), abort=True, err=True)
