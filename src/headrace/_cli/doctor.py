"""`headrace doctor`: checks the settings of a server, and shows the promises that they break."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import attrs
import redis
import typer

from headrace._cli.console import FAILED, connected, reported, server
from headrace._cli.options import Json, Namespace, Url
from headrace._cli.output import print_json, print_out
from headrace._core.views.doctor import NUMSUB, TRIAL, Facts, examine
from headrace._net.base.cluster.address import names_cluster
from headrace._protocol.keys import Keys

SETTINGS = ("appendfsync", "save", "min-replicas-to-write")


def doctor(in_json: Json = False, url: Url = None, namespace: Namespace = "headrace") -> None:
    """Examine a server: version, settings, and rights of its user. Exit code 1 if it breaks a promise.

    It writes one key of the namespace, and deletes it again. On a cluster each primary is examined.
    """
    broken = False
    with reported(), connected(server(url)) as client:
        cluster = names_cluster(None, client)
        trial = _asked(client.eval, TRIAL, 1, Keys.of("doctor", namespace).key("doctor"))
        for node, place in _nodes(client, cluster):
            for found in examine(_facts(node, trial, namespace, cluster)):
                broken = broken or found.state == "broken"
                if in_json:
                    print_json(attrs.asdict(found) | ({"node": place} if place else {}))
                else:
                    print_out("\t".join([*([place] if place else []), found.state, found.check, found.text]))
    if broken:
        raise typer.Exit(FAILED)


def _nodes(client: Any, cluster: bool) -> Iterator[tuple[Any, str]]:
    """Yield a client for each server, and its place, if there are several."""
    if not cluster:
        yield client, ""
        return
    for node in client.get_primaries():
        yield client.get_redis_connection(node), node.name


def _asked(call: Any, *args: Any) -> Any:
    """Return the answer to a call, or the error that the server gave."""
    try:
        return call(*args)
    except redis.ResponseError as error:
        return error


def _facts(client: Any, trial: Any, namespace: str, cluster: bool) -> Facts:
    info = _asked(client.info)
    now = _asked(client.time)
    settings: dict[str, str] = {}
    for name in SETTINGS:
        found = _asked(client.config_get, name)
        settings |= found if isinstance(found, dict) else {}
    channel = Keys.of("doctor", namespace).key("told")
    return Facts(
        {} if isinstance(info, Exception) else info,
        settings,
        trial,
        None if cluster else _asked(client.eval, NUMSUB, 1, channel),
        _asked(client.execute_command, "WAITAOF", 1, 0, 1),
        0.0 if isinstance(now, Exception) else now[0] + now[1] / 1e6 - time.time(),
        cluster,
    )
