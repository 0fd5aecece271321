"""The event loop of a worker that makes its own loop: uvloop, if it is installed and not disabled."""

from __future__ import annotations

import asyncio
import importlib
import os
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from headrace.errors import ConfigurationError

SAYS = "HEADRACE_LOOP"  # the environment variable: uvloop or asyncio


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, like `asyncio.run`. Raises `ConfigurationError` where a loop is running."""
    try:
        factory = _factory()
    except BaseException:
        story.close()
        raise
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(story)


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the loop; `None` for asyncio's. Raises `ConfigurationError`, also if a loop runs."""
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise ConfigurationError("run() makes an event loop of its own, and one is running: await serve() instead")
    wanted = os.environ.get(SAYS, "")
    if wanted not in ("", "uvloop", "asyncio"):
        raise ConfigurationError(f"{SAYS}={wanted!r}: give uvloop or asyncio, or leave it unset")
    if wanted == "asyncio":
        return None
    with suppress(ImportError):
        make: Callable[[], asyncio.AbstractEventLoop] = importlib.import_module("uvloop").new_event_loop
        return make
    if wanted:
        raise ConfigurationError(f"{SAYS}=uvloop: it is not installed: pip install 'headrace[speed]'")
    return None


def named() -> str:
    """Return the name of the running loop, such as `uvloop`, if it is not asyncio's own."""
    module = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    return "" if module == "asyncio" else module
