"""The facts of this process that a worker reports."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Mapping
from importlib.metadata import version
from mmap import PAGESIZE
from pathlib import Path

VERSION = version("headrace")


def program() -> str:
    return f"{socket.gethostname()[:100]}:{os.getpid()}"


def process_facts() -> Mapping[str, str | int]:
    """Return the machine, the process, its versions, and its resident memory in bytes, 0 where it
    is not known.
    """
    try:
        memory = int(Path("/proc/self/statm").read_bytes().split()[1]) * PAGESIZE
    except (OSError, ValueError, IndexError):
        memory = 0
    return {
        "host": socket.gethostname()[:100],
        "pid": os.getpid(),
        "version": VERSION,
        "python": platform.python_version(),
        "memory": memory,
    }
