"""The users of the documentation on a cluster. They may do what their roles allow, and nothing
else."""

from __future__ import annotations

import re

import pytest
import redis

from headrace import Queue, Worker
from tests.docs.test_roles import DOCS, NOT_ALLOWED, REFUSED, ROLES
from tests.support.cluster import Cluster

(MORE,) = re.findall(
    r"`(\+cluster\|slots [^`]*)`", (DOCS / "how-to" / "use-a-cluster.md").read_text("utf-8")
)


def test_each_role_on_each_master(cluster: Cluster) -> None:
    for node in cluster.nodes:
        for name, rules in ROLES.items():
            node.ask("ACL", "SETUSER", name, "reset", *rules.split(), *MORE.split())
    try:
        urls = {role: cluster.url.replace("://", f"://{role}:secret@") for role in ROLES}
        names = cluster.groups()
        worker = Worker(urls["mail"])
        for name in names:
            worker.handler(name)(lambda job: job.payload.upper())
        with worker:
            for name in names:
                with Queue(name, url=urls["producer"]) as queue:
                    assert queue.enqueue(b"x").result(timeout=60) == b"X"
                    with pytest.raises(NOT_ALLOWED, match=REFUSED):
                        queue.lease()
                with (
                    Queue(name, url=urls["mail"]) as queue,
                    queue.events(["added"], timeout=60) as events,
                ):
                    assert queue.enqueue(b"x").id == next(events).id
                with Queue(name, url=urls["viewer"]) as queue:
                    assert queue.counts().enqueued == 2
                    with pytest.raises(NOT_ALLOWED, match=REFUSED):
                        queue.enqueue(b"x")
        for node in cluster.nodes:
            assert "cmdstat_spublish" in node.info("INFO", "commandstats")
            with redis.Redis(port=node.port) as client:
                denied = {entry["object"] for entry in client.acl_log()}
            assert not denied & {"cluster|slots", "asking", "ssubscribe", "spublish"}
    finally:
        for node in cluster.nodes:
            node.ask("ACL", "DELUSER", *ROLES)
            node.ask("ACL", "LOG", "RESET")
