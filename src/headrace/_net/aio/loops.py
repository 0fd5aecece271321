"""The event loop of a worker that makes its own. It is uvloop's, if that is installed and not
disabled.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import Any, cast

from headrace._installing import install_command
from headrace.errors import ConfigurationError

SAYS = "HEADRACE_LOOP"  # the environment variable: uvloop or asyncio


def run(story: Coroutine[Any, Any, None]) -> None:
    """Run a coroutine to its end, like `asyncio.run`. Raises `ConfigurationError` where a loop is
    running.
    """
    try:
        factory = _factory()
    except BaseException:
        story.close()
        raise
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(story)


@contextmanager
def on_signals(act: Callable[[], object]) -> Generator[bool]:
    """Call *act* on SIGINT and SIGTERM, and restore the program's own handlers at the end.

    Yields whether this thread can handle signals.
    """
    loop = asyncio.get_running_loop()
    before: dict[int, tuple[Any, Any]] = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        # asyncio has no public way, and uvloop has none at all
        own = getattr(loop, "_signal_handlers", {}).get(number)
        handler = signal.getsignal(number)
        with suppress(NotImplementedError, RuntimeError, ValueError):  # not in the main thread
            loop.add_signal_handler(number, act)
            before[number] = own, handler
    try:
        yield bool(before)
    finally:
        for restored, (own, handler) in before.items():
            loop.remove_signal_handler(restored)
            if own is not None:
                loop.add_signal_handler(restored, own._callback, *own._args)  # noqa: SLF001 - see above
            elif handler is not None and getattr(handler, "__self__", None) is not loop:
                signal.signal(restored, handler)


def _factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return the factory of the loop, or `None` for asyncio's. Raises `ConfigurationError`, also if
    a loop runs.
    """
    with suppress(RuntimeError):
        asyncio.get_running_loop()
        raise ConfigurationError(
            "run() makes an event loop of its own, and one is running: await serve() instead"
        )
    wanted = os.environ.get(SAYS, "")
    if wanted not in ("", "uvloop", "asyncio"):
        raise ConfigurationError(f"{SAYS}={wanted!r}: give uvloop or asyncio, or leave it unset")
    if wanted == "asyncio":
        return None
    with suppress(ImportError):
        return cast(
            "Callable[[], asyncio.AbstractEventLoop]",
            importlib.import_module("uvloop").new_event_loop,
        )
    if wanted:
        raise ConfigurationError(f"{SAYS}=uvloop: it is not installed: {install_command('speed')}")
    return None


def named() -> str:
    module = type(asyncio.get_running_loop()).__module__.partition(".")[0]
    return "" if module == "asyncio" else module
