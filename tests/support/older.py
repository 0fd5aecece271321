"""A worker of the version before steps and terms, in a process of its own.

The old code is a commit of the repository's history; without a history there is nothing to test.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from tests.support.servers import Server

COMMIT = "8c645ad"
ROOT = Path(__file__).parents[2]
PROGRAM = """
import sys
import headrace
assert headrace.__file__.startswith(sys.argv[2]), headrace.__file__
worker = headrace.Worker(sys.argv[1], heartbeat=0.2, timeout=0.5)
options = {"concurrency": int(sys.argv[3])} if sys.argv[3:] else {}

@worker.handler("q", lease=0.5, **options)
def handle(job):
    print("ran", job.id, flush=True)

with worker:
    print("ready", flush=True)
    sys.stdin.read()
"""


def source(folder: Path) -> Path:
    """Unpack the source of the older version."""
    command = ["git", "archive", "--format=zip", COMMIT, "src"]
    archive = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    if archive.returncode:
        pytest.skip(f"no commit {COMMIT} here: {archive.stderr.decode()[:200]}")
    ZipFile(io.BytesIO(archive.stdout)).extractall(folder)
    return folder / "src"


def begin(old: Path, server: Server, *options: str) -> Any:
    """Start the worker of the queue `q`. It prints `ready`, and `ran` with each id. *options* has
    the concurrency."""
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM, server.url, str(old), *options],
        env={**os.environ, "PYTHONPATH": str(old)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def end(program: Any) -> str:
    """End the worker and return the lines that were not read."""
    program.stdin.close()
    left: str = program.stdout.read()
    program.stdout.close()
    program.wait()
    return left
