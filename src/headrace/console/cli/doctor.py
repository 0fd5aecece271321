"""The examination of a server for settings, and rights of its user, that break promises. It does no
input or output.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from attrs import field, frozen

from headrace.platform import OutboxView

OLDEST = (6, 2)
TRIAL = """
redis.call('DEL', KEYS[1])
redis.call('XADD', KEYS[1], '*', 'data', 'x')
redis.call('PEXPIRE', KEYS[1], 10000)
redis.call('XGROUP', 'CREATE', KEYS[1], 'headrace', '0')
local got = redis.call('XREADGROUP', 'GROUP', 'headrace', 'doctor', 'COUNT', 1, 'STREAMS', KEYS[1], '>')
local entry = got[1] and got[1][2][1][1] or got[KEYS[1]][1][1]
local taken = redis.call('XDEL', KEYS[1], entry) + redis.call('XACK', KEYS[1], 'headrace', entry)
redis.call('DEL', KEYS[1])
return taken
"""  # what every script of a queue rests on; returns 2
NUMSUB = "return redis.call('PUBSUB', 'NUMSUB', KEYS[1])[2]"

State = Literal["ok", "note", "broken"]


@frozen
class Finding:
    """The result of a check of a server, which is `ok`, `note`, or `broken` if the server breaks a
    promise.
    """

    check: str
    state: State
    text: str


@frozen
class Facts:
    """The answers of a server. A refused answer is an exception, or is missing."""

    info: Mapping[str, Any]
    settings: Mapping[str, str] = field(factory=dict[str, str])
    trial: Any = 2
    numsub: Any = 0
    waitaof: Any = 0
    ahead: float = 0.0
    """Seconds that its clock is ahead of ours."""
    by_cluster: bool = False
    """Whether it was reached as the node of a cluster."""


def examine(facts: Facts) -> Iterator[Finding]:
    checks = (
        _version,
        _role,
        _cluster,
        _eviction,
        _persistence,
        _scripts,
        _pubsub,
        _durable,
        _replicas,
        _clock,
    )
    return (check(facts) for check in checks)


def relays(outboxes: Mapping[str, OutboxView | None]) -> Iterator[Finding]:
    for queue, view in outboxes.items():
        if view is not None:
            yield Finding("relay", _state_of(view), f"of the outbox of {queue}: {view.text}")


def _state_of(view: OutboxView) -> State:
    if view.dead:
        return "broken"
    return "note" if view.ended or view.refused else "ok"


def _said(facts: Facts, name: str, usual: str = "") -> str:
    return str(facts.info.get(name, usual))


def _version(facts: Facts) -> Finding:
    version = _said(facts, "redis_version")
    valkey = _said(facts, "valkey_version")
    name = f"Valkey {valkey}" if valkey else f"Redis {version}"
    if not version:
        return Finding("version", "note", "it does not say (INFO is refused): give the user +info")
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if parts < OLDEST:
        return Finding("version", "broken", f"{name}: 6.2 is the oldest that has the commands")
    return Finding("version", "ok", name)


def _role(facts: Facts) -> Finding:
    if _said(facts, "role", "master") != "master":
        return Finding(
            "role", "broken", "a replica: it takes no writes; name the primary, or use Sentinel"
        )
    return Finding("role", "ok", "a primary")


def _cluster(facts: Facts) -> Finding:
    here = _said(facts, "cluster_enabled", "0") == "1"
    if here and not facts.by_cluster:
        return Finding(
            "cluster", "broken", "a node of a cluster: use redis+cluster://, or rediss+cluster://"
        )
    return Finding("cluster", "ok", "a node of a cluster" if here else "no cluster")


def _eviction(facts: Facts) -> Finding:
    policy = _said(facts, "maxmemory_policy")
    most = int(_said(facts, "maxmemory", "0"))
    if not policy:
        return Finding("eviction", "note", "it does not say: maxmemory-policy must be noeviction")
    if policy == "noeviction":
        full = f"{most:,} bytes" if most else "none: the machine's memory is the limit"
        return Finding("eviction", "ok", f"noeviction; maxmemory {full}")
    what = (
        "a whole queue"
        if policy.startswith("allkeys")
        else "records of calls, which then may act twice"
    )
    if not most:
        return Finding(
            "eviction",
            "note",
            f"{policy} would delete {what}, once there is a maxmemory: set noeviction",
        )
    return Finding(
        "eviction", "broken", f"{policy}: it may delete {what}; set maxmemory-policy noeviction"
    )


def _persistence(facts: Facts) -> Finding:
    if not (aof := _said(facts, "aof_enabled")):
        return Finding("power cut", "note", "it does not say what it writes to disk")
    if aof != "1":
        saves = facts.settings.get("save")
        all_of_it = (
            "everything" if saves == "" else "what came after the last snapshot, if there is one"
        )
        return Finding("power cut", "broken", f"would lose {all_of_it}: set appendonly yes")
    if _said(facts, "aof_last_write_status", "ok") != "ok":
        return Finding(
            "power cut",
            "broken",
            "the last write to the append-only file has failed: look at the disk",
        )
    when = facts.settings.get("appendfsync", "everysec")
    lost = {
        "always": "nothing that was acknowledged",
        "no": "what the system has not written yet, often 30 seconds",
    }
    text = f"would lose {lost.get(when, 'the last second or two')} (appendfsync {when})"
    return Finding("power cut", "note" if when == "no" else "ok", text)


def _scripts(facts: Facts) -> Finding:
    if facts.trial != 2:
        return Finding(
            "scripts", "broken", f"a script on a stream and its group fails: {facts.trial}"
        )
    return Finding("scripts", "ok", "a script on a stream and its group works, with this user")


def _pubsub(facts: Facts) -> Finding:
    if isinstance(facts.numsub, Exception):
        return Finding(
            "Pub/Sub",
            "note",
            f"not in scripts ({facts.numsub}): results and cancellations are learnt seconds later",
        )
    return Finding("Pub/Sub", "ok", "in scripts, too")


def _durable(facts: Facts) -> Finding:
    if isinstance(facts.waitaof, Exception):
        return Finding("WAITAOF", "note", f'no durable="fsync": {facts.waitaof}')
    if _said(facts, "valkey_version") and facts.settings.get("appendfsync") == "everysec":
        text = 'Valkey answers it before the fsync: durable="fsync" needs appendfsync always'
        return Finding("WAITAOF", "note", text)
    return Finding("WAITAOF", "ok", 'durable="fsync" can be had')


def _replicas(facts: Facts) -> Finding:
    number = int(_said(facts, "connected_slaves", "0"))
    if number and facts.settings.get("min-replicas-to-write") == "0":
        text = f'{number}; a failover may lose what they lack: min-replicas-to-write 1, or durable="replicas:1"'
        return Finding("replicas", "note", text)
    return Finding("replicas", "ok", str(number))


def _clock(facts: Facts) -> Finding:
    if abs(facts.ahead) > 2.0:  # seconds between two clocks
        way = "ahead of" if facts.ahead > 0 else "behind"
        return Finding(
            "clock",
            "note",
            f"{abs(facts.ahead):.0f} s {way} ours; delays and leases go by the server's",
        )
    return Finding("clock", "ok", "as ours")
