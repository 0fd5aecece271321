"""Every key name, and the rules for names. One hash tag per group, nothing escaped."""

from __future__ import annotations

import re

from attrs import frozen

from headrace._model.checks import text
from headrace._model.job import Anonymous, ShardedName, on_wire
from headrace._model.shards import ShardRow
from headrace.errors import ConfigurationError

GROUP = "workers"  # the consumer group of every stream
PARKED = "parked"  # reserved consumer: released and reclaimed entries, in front of all new ones
# prefix of headers that describe one job, and are not copied to another
JOB_HEADER_PREFIX = "headrace-"
FLOW = "headrace-flow"  # the header of a flow's job: the key of its run
LIMITED = "limited"  # reserved consumer: entries that a rate limit holds back
BEHIND = "behind"  # reserved consumer: entries that wait behind another of their key
IDLE = "idle"  # reserved consumer: entries that woke a blocked reader, until a lease takes them
QUEUE = re.compile(r"[A-Za-z0-9._-]+(?:/[A-Za-z0-9._-]+)?")
NAMESPACE = re.compile(r"[A-Za-z0-9._-]{1,100}")
WORKER = re.compile(r"[A-Za-z0-9._-]{1,200}")
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")  # never in an id
QUEUE_CHARACTERS = 200
ID_BYTES = 500


@frozen
class Keys:
    """The keys of one queue.

    A key is `<namespace>:{<group>}:<queue>:<part>`.
    """

    queue: str
    group: str
    prefix: str
    shard: ShardRow | None = None

    @classmethod
    def of(cls, queue: str, namespace: str = "headrace") -> Keys:
        if not (1 <= len(text("queue", queue)) <= QUEUE_CHARACTERS and QUEUE.fullmatch(queue)):
            raise ConfigurationError(
                f"queue name {queue!r}: use 1-200 letters, digits, '.', '_', '-' and at most one '/' between two parts"
            )
        _namespace(namespace)
        group = queue.partition("/")[0]
        return cls(queue, group, f"{namespace}:{{{group}}}:{queue}:")

    def at(self, shard: ShardRow) -> Keys:
        """Return the keys of a shard, which has its own slot.

        They begin with `<namespace>:{<group>~<number>.<salt>}:`.
        """
        tag = shard.tag(self.group)
        prefix = self.prefix.replace(f"{{{self.group}}}", f"{{{tag}}}", 1)
        return Keys(ShardedName.at(self.queue, shard.number), tag, prefix, shard)

    @classmethod
    def at_prefix(cls, prefix: str) -> Keys:
        """Return the keys of a queue, or of its shard, by their prefix."""
        found = re.fullmatch(r"[^{]*:\{([^}]*)\}:(.*):", prefix)
        assert found is not None, prefix  # noqa: S101 - a script has written it
        return cls(found[2], found[1], prefix)

    @property
    def shards(self) -> str:
        return f"{self.prefix.removesuffix(f':{self.queue}:')}:shards"

    def key(self, name: str) -> str:
        return self.prefix + name

    def levels(self, priorities: int) -> list[str]:
        """Return the streams of the priority levels after the first, whose stream is `jobs`."""
        return [self.key(f"jobs:{level}") for level in range(1, priorities)]

    def lane(self, lane: str) -> str:
        return f"{self.prefix}lane:{lane}"

    def channel(self, kind: str) -> str:
        return f"{self.prefix}events:{kind}"

    def result(self, job_id: str) -> str:
        if isinstance(job_id, Anonymous):
            job_id = job_id.entry
        return f"{self.prefix}result:{job_id}"

    def flow(self, run: str) -> str:
        """Return the key of a run's state. These keys belong to the flow, a queue that is named
        like the group."""
        return f"{self.prefix}flow:{run}"


def _namespace(value: object) -> None:
    if not NAMESPACE.fullmatch(text("namespace", value)):
        raise ConfigurationError(
            f"namespace {value!r}: use 1-100 letters, digits, '.', '_' and '-'"
        )


def job_id(value: object) -> str:
    """Return *value* if it may be a job's id. Raises `TypeError` or `ValueError`."""
    name = value if isinstance(value, str) else text("id", value)
    if not name or CONTROL.search(name):
        raise ValueError(f"id {value!r}: use 1-500 bytes of UTF-8 without control characters")
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise ValueError(f"id {value!r} is not valid Unicode: use 1-500 bytes of UTF-8") from None
    if size > ID_BYTES:
        raise ValueError(f"id of {size} bytes: use at most 500 bytes of UTF-8")
    return name


def job_key(value: object) -> str:
    try:
        return job_id(value)
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace("id", "key", 1)) from None


def wire_id(name: str) -> str | bytes:
    return on_wire(job_id(name))


def worker_name(value: object) -> str:
    name = text("name", value)
    if not WORKER.fullmatch(name) or name in (PARKED, IDLE, LIMITED, BEHIND):
        raise ValueError(
            f"worker name {value!r}: use 1-200 letters, digits, '.', '_', '-'; "
            f"{PARKED!r}, {IDLE!r}, {LIMITED!r} and {BEHIND!r} are reserved"
        )
    return name


def pattern(namespace: str) -> str:
    """Return the SCAN pattern that finds every queue of *namespace*. Raises `ConfigurationError`
    for a bad name."""
    _namespace(namespace)
    return f"{namespace}:{{*}}:*:[jds][oec]*"


def queue_of(key: str) -> str | None:
    """Return the queue to which *key* belongs, if the key is a stream, delayed jobs or schedules.
    Such a key shows that the queue exists.
    """
    match = re.fullmatch(r"[^{]*:\{([^}]*)\}:([^:]+):(?:jobs|jobs:\d|delayed|schedules)", key)
    return match[2] if match and QUEUE.fullmatch(match[2]) else None


def run_pattern(flow: str, namespace: str, prefix: str = "") -> str:
    """Return the SCAN pattern that finds the runs of a flow, `*` for all flows, in any shard, by
    their *prefix*."""
    begin = re.sub(r"([\\*?\[\]])", r"\\\1", prefix)
    return f"{namespace}:{{{flow}*}}:{flow}:flow:{begin}*"


def run_in(key: str) -> tuple[str, str] | None:
    """Return the flow and the id of the run with its state at *key*. Return `None` if the key is no
    run's."""
    match = re.fullmatch(r"[^{]*:\{([^}~]*)(?:~\d+\.\d+)?\}:([^:]+):flow:(.+)", key, re.DOTALL)
    return (
        (match[2], match[3])
        if match and match[1] == match[2] and QUEUE.fullmatch(match[2])
        else None
    )


def in_shard(key: str) -> bool:
    return "~" in key.partition("{")[2].partition("}")[0]
