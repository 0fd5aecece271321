"""The ordinary way of each verb through the package, by files and by calls of Python functions.

python bench/walk.py --server valkey-9.1 --show enqueue
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from attrs import define, field

sys.path.insert(0, str(Path(__file__).parent.parent))

import headrace
from headrace import AsyncQueue, Queue
from tests.support.servers import Server, binaries

HERE = str(Path(headrace.__file__).parent)


@define
class Walk:
    """The calls of the package's functions, in their order."""

    calls: list[tuple[int, str, str]] = field(factory=list)  # depth, file, function

    @property
    def files(self) -> int:
        return len({file for _, file, _ in self.calls})


@contextmanager
def walking() -> Iterator[Walk]:
    """Record each call of a function of the package. A generator or a coroutine counts each time it
    goes on."""
    walk = Walk()
    depth = 0

    def note(frame: FrameType, event: str, _: Any) -> None:
        nonlocal depth
        if not frame.f_code.co_filename.startswith(HERE):
            return
        if event == "call":
            file = frame.f_code.co_filename.removeprefix(HERE)
            walk.calls.append((depth, file, frame.f_code.co_qualname))
            depth += 1
        elif event == "return":
            depth -= 1

    sys.setprofile(note)
    try:
        yield walk
    finally:
        sys.setprofile(None)


def shorter(one: Walk, other: Walk | None) -> Walk:
    """Return the shorter walk. The first one has more to do, and so has one on an idle
    connection."""
    return one if other is None or len(one.calls) < len(other.calls) else other


TIMES = 4
OPTIONS: dict[str, dict[str, Any]] = {
    "enqueue": {"id": "a"},
    "enqueue, header": {"headers": {"tenant": "a"}},
    "enqueue, key": {"key": "a"},
    "enqueue, payload": {},
}


def sync_walks(url: str) -> dict[str, Walk]:
    """Walk through the verbs of `Queue`."""
    walks: dict[str, Walk] = {}
    with Queue("walks", url=url) as jobs:

        def walk(name: str, call: Callable[[], Any]) -> Any:
            with walking() as one:
                answer = call()
            walks[name] = shorter(one, walks.get(name))
            return answer

        for name, options in OPTIONS.items():
            for _ in range(TIMES):
                walk(name, lambda options=options: jobs.enqueue(b"x", **options))
                jobs.admin.purge()
        for _ in range(TIMES):
            jobs.enqueue(b"x", id="a")
            lease: Any = walk("lease", jobs.lease)
            walk("complete", lambda lease=lease: lease.complete())
        for _ in range(TIMES):
            jobs.enqueue(b"x", id="a")
            lease = jobs.lease()
            lease.job.step("first", str)
            walk("recorded step", lambda lease=lease: lease.job.step("second", str))
            lease.complete()
    with Queue("fair", url=url, fair="tenant") as jobs:
        for _ in range(TIMES):
            jobs.enqueue(b"x", headers={"tenant": "a"})
            walk("fair lease", jobs.lease).complete()
    return walks


async def async_walks(url: str) -> dict[str, Walk]:
    """Walk through the verbs of `AsyncQueue`."""
    walks: dict[str, Walk] = {}

    async def walk(name: str, call: Callable[[], Awaitable[Any]]) -> Any:
        with walking() as one:
            answer = await call()
        walks[name] = shorter(one, walks.get(name))
        return answer

    async with AsyncQueue("walks", url=url) as jobs:
        for name, options in OPTIONS.items():
            for _ in range(TIMES):
                await walk(name, lambda options=options: jobs.enqueue(b"x", **options))
                await jobs.admin.purge()
        for _ in range(TIMES):
            await jobs.enqueue(b"x", id="a")
            lease: Any = await walk("lease", jobs.lease)
            await walk("complete", lambda lease=lease: lease.complete())
        for _ in range(TIMES):
            await jobs.enqueue(b"x", id="a")
            lease = await jobs.lease()
            await lease.job.step("first", str)
            await walk("recorded step", lambda lease=lease: lease.job.step("second", str))
            await lease.complete()
    async with AsyncQueue("fair", url=url, fair="tenant") as jobs:
        for _ in range(TIMES):
            await jobs.enqueue(b"x", headers={"tenant": "a"})
            lease = await walk("fair lease", jobs.lease)
            await lease.complete()
    return walks


def main() -> None:
    """Walk and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--server", default="valkey-9.1", help="one of " + ", ".join(b.name for b in binaries())
    )
    parser.add_argument("--show", help="the verb with its calls")
    options = parser.parse_args()
    binary = next(b for b in binaries() if b.name == options.server)
    with Server(binary) as server:
        walks = [sync_walks(server.url), asyncio.run(async_walks(server.url))]
    print(f"{'':20}{'Queue: files':>14}{'calls':>8}{'AsyncQueue: files':>20}{'calls':>8}")
    for name, one in walks[0].items():
        other = walks[1][name]
        print(f"{name:20}{one.files:14}{len(one.calls):8}{other.files:20}{len(other.calls):8}")
    for one in walks if options.show else ():
        print()
        for depth, file, function in one[options.show].calls:
            print(f"{'  ' * depth}{function}  {file}")
        for file, count in Counter(file for _, file, _ in one[options.show].calls).most_common():
            print(f"{count:5} {file}")


if __name__ == "__main__":
    main()
