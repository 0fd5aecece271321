"""`headrace doctor` on badly configured servers, and on a good one."""

from __future__ import annotations

import json
from typing import Any

from typer.testing import CliRunner

from headrace.console.cli.app import app
from tests.support.cluster import Cluster
from tests.support.servers import Server, binaries


def examined(url: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Run the doctor. Return its exit code and its findings by check."""
    done = CliRunner().invoke(app, ["doctor", "--json", "--url", url])
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return done.exit_code, {one["check"]: one for one in found}


def test_a_sound_server() -> None:
    with Server(binaries()[0], appendonly=True) as server:
        code, found = examined(server.url)
        early = found.pop("WAITAOF")
        assert (code, {one["state"] for one in found.values()}) == (0, {"ok"})
        assert early["state"] == "note"
        assert early["text"].endswith('durable="fsync" needs appendfsync always')
        server.ask("CONFIG", "SET", "appendfsync", "always")
        assert examined(server.url)[1]["WAITAOF"]["state"] == "ok"
        server.ask("CONFIG", "SET", "appendfsync", "everysec")
        with server.client() as client:
            assert client.keys() == []
        done = CliRunner().invoke(app, ["doctor", "--url", server.url])
        assert (
            "ok\tpower cut\twould lose the last second or two (appendfsync everysec)\n"
            in done.stdout
        )


def test_a_server_that_breaks_promises() -> None:
    extra = ["--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"]
    with Server(binaries()[0], extra=extra) as server:
        with server.client() as client:
            client.execute_command(
                "ACL", "SETUSER", "weak", "on", "nopass", "~*", "&*", "+@all", "-@scripting"
            )
        code, found = examined(server.url.replace("unix://", "unix://weak:x@"))
        broken = {name: one["text"] for name, one in found.items() if one["state"] == "broken"}
        assert (code, set(broken)) == (1, {"eviction", "power cut", "scripts"})
        assert broken["power cut"] == "would lose everything: set appendonly yes"
        assert "allkeys-lru: it may delete a whole queue" in broken["eviction"]
        assert "no permissions" in broken["scripts"]


def test_a_user_who_may_ask_nothing() -> None:
    """A check that the user has no right to is a note."""
    with Server(binaries()[0]) as server:
        with server.client() as client:
            client.execute_command(
                "ACL", "SETUSER", "mute", "on", "nopass", "~*", "+@all", "-info", "-config"
            )
        code, found = examined(server.url.replace("unix://", "unix://mute:x@"))
        assert (code, found["version"]["state"], found["eviction"]["state"]) == (0, "note", "note")


def test_the_oldest_server() -> None:
    with Server(binaries()[-1], appendonly=True) as server:
        code, found = examined(server.url)
        assert (code, found["scripts"]["state"]) == (0, "ok")


def test_a_cluster() -> None:
    """Every primary is checked. The URL of one node alone is reported as broken."""
    with Cluster(binaries()[0], masters=1, extra=["--appendonly", "yes"]) as cluster:
        code, found = examined(cluster.url)
        assert (code, found["cluster"]["state"]) == (0, "ok")
        assert found["cluster"]["node"] == f"127.0.0.1:{cluster.nodes[0].port}"
        code, found = examined(f"redis://127.0.0.1:{cluster.nodes[0].port}")
        assert (code, found["cluster"]["state"]) == (1, "broken")
