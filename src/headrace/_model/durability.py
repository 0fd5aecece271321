"""The durability of writes: where they must be before a call returns (`durable=`)."""

from __future__ import annotations

import re

from attrs import frozen


@frozen
class Durability:
    """The places where a write must be before its call returns: replicas, and the primary's disk."""

    replicas: int = 0
    fsync: bool = False

    @classmethod
    def of(cls, value: object) -> Durability | None:
        """Read "replicas:1", "fsync" or "replicas:1,fsync". Raises `ValueError` or `TypeError` for anything else."""
        if value is None or isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise TypeError(f'durable must be a str, such as "replicas:1", not {type(value).__name__}')
        replicas, fsync = 0, False
        for part in value.split(","):
            if (number := re.fullmatch(r"replicas:([1-9]\d?)", part)) and not replicas:
                replicas = int(number[1])
            elif part == "fsync" and not fsync:
                fsync = True
            else:
                raise ValueError(f'durable={value!r:.100}: give "replicas:1", "fsync" or "replicas:1,fsync"')
        return cls(replicas, fsync)

    def __str__(self) -> str:
        return ",".join([f"replicas:{self.replicas}"] * bool(self.replicas) + ["fsync"] * self.fsync)
