"""The steps of a job in a child. The child runs the functions. The parent keeps the records."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from headrace._codecs.recorded import Recorded
from headrace._isolation.link import Head
from headrace._isolation.values import packed
from headrace._model.steps import fraction_of, step_name

Answer = tuple[Head, list[bytes]]
# a thread for each call that a coroutine waits for: a job has 1,000 records at most
WAITING = ThreadPoolExecutor(1000, "headrace-ask")


class Asks(Protocol):
    """The child's side of the link."""

    def ask(self, head: Head, parts: Sequence[bytes] = ()) -> Answer:
        """Ask the parent, and wait for its answer. Raises its error."""
        ...

    def tell(self, head: Head) -> None: ...


class AskedSteps:
    """The steps of one run, where `Job.step` and its siblings end in a child."""

    def __init__(self, link: Asks, values: Recorded, *, awaits: bool) -> None:
        self._link = link
        self._values = values
        self._awaits = awaits  # whether the handler is a coroutine

    def step(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        options: Mapping[str, Any],
        *,
        once: bool,
    ) -> Any:
        return self._made(self._step(name, function, args, options, once=once))

    def sleep(self, name: str, duration: Any, *, release_key: bool) -> Any:
        head = {"until": packed(duration), "release_key": release_key}
        return self._made(self._waited("sleep", name, head))

    def wait_for(self, name: str, timeout: Any, *, release_key: bool) -> Any:
        head = {"until": packed(timeout), "release_key": release_key}
        return self._made(self._waited("wait_for", name, head))

    def progress(self, fraction: float, text: str) -> None:
        if not isinstance(text, str):
            raise TypeError(f"text must be a str, not {type(text).__name__}")
        self._link.tell({"is": "progress", "fraction": fraction_of(fraction), "text": text})

    def _made(self, call: Coroutine[Any, Any, Any]) -> Any:
        """Return the call to a coroutine, which awaits it. Run it to its end in a plain function,
        where none of its awaits waits.
        """
        if self._awaits:
            return call
        try:
            call.send(None)
        except StopIteration as done:
            return done.value
        raise TypeError(
            "the function of a step is async: give a plain one, or make the handler async"
        )

    async def _asked(self, head: Head, parts: Sequence[bytes] = ()) -> Answer:
        if self._awaits:
            loop = asyncio.get_running_loop()
            return await loop.run_in_executor(WAITING, self._link.ask, head, parts)
        return self._link.ask(head, parts)

    async def _step(
        self,
        name: str,
        function: Callable[..., Any],
        args: Sequence[Any],
        options: Mapping[str, Any],
        *,
        once: bool,
    ) -> Any:
        what = f"step {name!r:.100}"
        if not callable(function):
            raise TypeError(
                f"{what}: give a function and its arguments, not {type(function).__name__}"
            )
        self._values.check(what, function)
        label = step_name(name)
        head, parts = await self._asked({"is": "begin", "name": label, "once": once})
        if head["known"]:
            return self._values.decoded(what, parts[0] if parts else None, function)
        since = time.monotonic()
        try:
            value = function(*args, **options)
            if inspect.isawaitable(value):
                value = await value
            data = self._values.encoded(what, value, function)
            read = self._values.decoded(what, data, function)
            took = time.monotonic() - since
            done = {"is": "end", "name": label, "took": took}
            await self._asked(done, () if data is None else (data,))
        except BaseException:
            self._link.tell({"is": "failed", "name": label})
            raise
        return read

    async def _waited(self, kind: str, name: str, head: Head) -> Any:
        _, parts = await self._asked({"is": kind, "name": name, **head})
        return self._values.decoded(f"signal {name!r}", parts[0] if parts else None)
