"""Round trips that calls of several threads share: on few connections, whatever the number of calls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Any

from headrace import _forks
from headrace._net.base.combining import CALLS_AT_MOST, TRIPS, Call, leaving
from headrace._net.base.lanes import Meanwhile
from headrace._net.sync.pool import Pool, replies, send


class ThreadCall(Call):
    """A call of a thread, which sleeps until it is answered, or until it is its turn to send for others."""

    def __init__(self, commands: Sequence[bytes], leaves: Meanwhile) -> None:
        super().__init__(commands, leaves)
        self.turn = threading.Event()  # a fork of the thread that waits for it there is not
        self.leads: Sequence[ThreadCall] = ()


class Combiner:
    """Calls that wait for a round trip, and calls under way. One of the callers of a trip sends it for all of them."""

    def __init__(self, connections: Pool) -> None:
        self._connections = connections
        self._waiting: deque[ThreadCall] = deque()
        self._under_way = 0
        self._lock = _forks.lock()

    def send(self, commands: Sequence[bytes], leaves: Meanwhile) -> list[Any]:
        """Send packed commands, together with other callers' commands. Return the replies, as `Executor.send` does."""
        call = ThreadCall(commands, leaves)
        with self._lock:
            self._waiting.append(call)
            if self._under_way < TRIPS:
                self._under_way += 1
                self._next()
        call.turn.wait()
        if call.leads:
            self._lead(call.leads)
            call.leads = ()  # this call is among them: where nothing happens, the collector may not come for long
        if call.error is not None:
            raise call.error
        assert call.answers is not None  # noqa: S101
        return call.answers

    def _next(self) -> None:
        """Let the first waiting caller send, for others, too. Under the lock."""
        some = [self._waiting.popleft() for _ in range(min(len(self._waiting), CALLS_AT_MOST))]
        some[0].leads = some
        some[0].turn.set()

    def _lead(self, some: Sequence[ThreadCall]) -> None:
        """Send the calls of a trip; then let another caller do so."""
        try:
            self._trip(some)
        except BaseException as error:
            for call in some:
                if call.answers is None and call.error is None:
                    call.error = error
        with self._lock:
            if self._waiting:
                self._next()
            else:
                self._under_way -= 1
        for call in some[1:]:
            call.turn.set()

    def _trip(self, some: Sequence[Call]) -> None:
        connection = self._connections.take()
        try:
            left, failed = leaving(some)
            send(connection, b"".join(chunk for call in left for chunk in call.commands))
            for call in some:
                call.error = failed.get(id(call))
                if call.error is None:
                    answers = replies(connection, len(call.commands))
                    self._connections.check(connection)
                    call.answers = answers
        except BaseException:
            self._connections.drop(connection)
            raise
        self._connections.give(connection)
