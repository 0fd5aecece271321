"""Scripts by their names, as a program in another language would call them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import redis

from headrace._protocol.admin_ops import MOVED_TO
from headrace._protocol.queue_ops import FOLLOWED
from headrace._protocol.replies import plain_receipts
from headrace._protocol.script import fixed, script
from tests.scripts.metered import Cost, cost, metered
from tests.support.servers import Server

ACCESS = Path(__file__).parents[2] / "docs" / "how-to" / "run-in-production.md"
COMMANDS = re.findall(
    r"\s([+&]\S+|resetchannels)",
    re.findall(r"^ACL SETUSER .*$", ACCESS.read_text("utf-8"), re.MULTILINE)[0],
)
PREFIX = "headrace:{q}:q:"
OTHERS = {
    "move": [f"headrace:{{q}}:q/to:{part}" for part in MOVED_TO],
    "child": [PREFIX + part for part in (*FOLLOWED, "jobs", "links")],
    "reports": [PREFIX + "reports:headrace:{bills}:bills:"],
}
TERM = 60_000  # ms of a lease, where it does not matter


def declared(name: str) -> list[str]:
    """Return the parts that are a script's keys, in their order. The keys of its items come after
    them."""
    return fixed(script(name).keys)


class Lua:
    """Runs scripts as a user who may touch only its declared keys, and only by the documented
    commands."""

    def __init__(self, server: Server, protocol: int) -> None:
        self.redis: Any = redis.Redis(unix_socket_path=server.path, decode_responses=True)
        self._acl("SETUSER", "script", "reset", "on", ">secret", *COMMANDS)
        self._acl("LOG", "RESET")
        self._keys: list[str] = []  # what the user may touch
        # keys that no call declares: the end of a child reports it to the queue of its parent
        self.parents: Sequence[str] = ()
        self.costs: list[Cost] | None = None  # a list: what each call has cost is noted there
        self._user: Any = redis.Redis(
            unix_socket_path=server.path, username="script", password="secret", protocol=protocol
        )

    def __call__(
        self,
        name: str,
        *args: Any,
        call: int | str = "",
        lane: str = "l",
        extra: Sequence[str] = (),
    ) -> Any:
        """Return the reply of a script with bytes as text. *extra* are whole names of keys after
        the declared ones."""
        parts = [f"lane:{lane}" if part == "lane" else part for part in declared(name)]
        others = [*(extra or OTHERS.get(name, ()))]
        # a key that *extra* names in full, first
        whole = {"result": "result", "flow_read": "flow"}.get(name)
        keys = [others.pop(0) if part == whole else PREFIX + part for part in parts]
        keys += others
        if keys != self._keys:
            allowed = [f"~{key}" for key in (*keys, *self.parents)]
            self._acl("SETUSER", "script", "resetkeys", *allowed)
            self._keys = keys
        given = [call, *args] if parts[0] == f"lane:{lane}" else args
        source = script(name).source if self.costs is None else metered(script(name).source)
        reply = self._user.execute_command("EVAL", source, len(keys), *keys, *given)
        if self.costs is not None:
            reply, noted = cost(name, reply)
            self.costs.append(noted)
        return text(reply)

    def close(self) -> None:
        """Restore the server. Nothing was refused, not even where a script would not tell."""
        self._user.close()
        refused = self._acl("LOG")
        self._acl("DELUSER", "script")
        self.redis.close()
        assert not refused, refused

    def _acl(self, *args: str) -> Any:
        return self.redis.execute_command("ACL", *args)

    # -- what tests say often ----------------------------------------------------------------------

    def add(self, *payloads: str) -> list[str]:
        """Enqueue plain payloads and return their ids."""
        return [receipt.id for receipt in plain_receipts(self("enqueue", "plain", *payloads))]

    def lease(
        self,
        worker: str = "w",
        limit: int = 100,
        *,
        most: int = 0,
        ttl: int = 70_000,
        **options: Any,
    ) -> Any:
        """Return the reply of `lease`. *most* is max_attempts."""
        args = [
            options.pop(name, default)
            for name, default in (("duration", ""), ("dead_limit", 1000), ("woken", 0))
        ]
        return self("lease", worker, limit, args[0], TERM, ttl, most, args[1], args[2], **options)

    def leased(self, *payloads: str, worker: str = "w", **options: Any) -> list[str]:
        entries = self.add(*payloads)
        self.lease(worker, **options)
        return entries

    def key(self, part: str) -> str:
        """Return the full name of a key of the queue."""
        return PREFIX + part

    def counts(self) -> dict[str, int]:
        """Return the counts that are not 0."""
        names = "waiting parked leased delayed blocked dead enqueued completed cancelled deleted dead_trimmed held"
        return {
            name: number
            for name, number in zip(names.split(), self("counts"), strict=True)
            if number
        }

    def holders(self) -> dict[str, tuple[str, int]]:
        """Return the holder and the delivery count of each pending entry."""
        if not self.redis.exists(self.key("jobs")) or not self.redis.xinfo_groups(self.key("jobs")):
            return {}
        rows = self.redis.xpending_range(self.key("jobs"), "workers", "-", "+", 10_000)
        return {row["message_id"]: (row["consumer"], row["times_delivered"]) for row in rows}

    def state(self) -> dict[str, Any]:
        """Return all keys but the records of calls."""
        keys = [
            key
            for key in sorted(self.redis.scan_iter(count=1000))
            if not key.startswith(f"{PREFIX}lane:")
        ]
        with self.redis.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.type(key)
            kinds = pipe.execute()
            for key, kind in zip(keys, kinds, strict=True):
                if kind == "stream":
                    pipe.xrange(key).xinfo_groups(key)
                elif kind == "hash":
                    pipe.execute_command("HGETALL", key, NEVER_DECODE=True)
                elif kind == "zset":
                    pipe.zrange(key, 0, -1, withscores=True)
                elif kind == "list":
                    pipe.lrange(key, 0, -1)
                else:
                    pipe.get(key)
            replies = iter(pipe.execute())
        found: dict[str, Any] = {}
        for key, kind in zip(keys, kinds, strict=True):
            value = next(replies)
            if kind == "stream":
                value = (
                    value,
                    [(g["name"], g["last-delivered-id"], g["pending"]) for g in next(replies)],
                )
            found[key.removeprefix(PREFIX)] = value
        return found | {"holders": self.holders()}


def dumps(client: Any) -> dict[Any, bytes]:
    """Return all keys but the records of calls, in the server's own form."""
    keys = [key for key in client.scan_iter(count=1000) if ":lane:" not in str(key)]
    with client.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.execute_command("DUMP", key, NEVER_DECODE=True)
        return dict(zip(keys, pipe.execute(), strict=True))


def restore(client: Any, found: dict[Any, bytes], only: str = "") -> None:
    """Restore the keys that `dumps` has found, and nothing else. *only*: the one that changed."""
    with client.pipeline(transaction=False) as pipe:
        _ = pipe.delete(only) if only else pipe.flushall()
        for key in {only} & found.keys() if only else found:
            pipe.restore(key, 0, found[key])
        pipe.execute()


def text(reply: Any) -> Any:
    """Return bytes as text, at all depths."""
    if isinstance(reply, bytes):
        return reply.decode(errors="surrogateescape")
    return [text(item) for item in reply] if isinstance(reply, list) else reply


@pytest.fixture(params=[2, 3], ids=["RESP2", "RESP3"])
def protocol(request: pytest.FixtureRequest) -> int:
    """Run with both protocols, in which a script's replies have one shape."""
    return int(request.param)


@pytest.fixture
def lua(server: Server, protocol: int) -> Iterator[Lua]:
    """Scripts on every server of the matrix."""
    lua = Lua(server, protocol)
    yield lua
    lua.close()
