"""Users of a server that may do less than everything."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis

PAGE = Path(__file__).parents[2] / "docs/how-to/run-in-production.md"


@contextmanager
def viewing(client: redis.Redis) -> Iterator[None]:
    """Make the user `viewer`, which may only read, as the docs have it; its password is `secret`."""
    (rule,) = re.findall(r"^ACL SETUSER viewer (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    admin: Any = client
    admin.execute_command("ACL SETUSER viewer reset", *rule.split())
    try:
        yield
    finally:
        admin.execute_command("ACL DELUSER viewer")
