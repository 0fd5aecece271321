"""Subscribed connections: Pub/Sub for workers, for calls that wait for results, and for event streams.

A subscription has its own connection, which serves only its channels, and always speaks RESP2. If the connection is
lost, the next call of `receive` opens it again, and reports that: messages published meanwhile are lost. An idle
connection is pinged: otherwise nobody would notice a server that vanished without closing it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import redis
from redis import exceptions as errors
from redis.backoff import NoBackoff
from redis.retry import Retry as NoRetry

from headrace import _forks
from headrace._core.notices import Received
from headrace._net.base.connections import own_pool
from headrace._net.base.sockets import cut
from headrace._net.base.subscription import PING, REDIRECTED_AT_MOST, BaseSubscription
from headrace._net.sync.executor import Executor
from headrace._protocol.queue_ops import Ops


class Subscription(BaseSubscription):
    """One subscribed connection to the server of *executor*. One thread uses it; another thread may `close` it."""

    _executor: Executor

    def __init__(self, executor: Executor, listened: Callable[[], Sequence[Ops]] | None = None) -> None:
        super().__init__(executor, listened)
        self._source: Any = None
        self._pool: Any = None  # of connections like those of that one
        self._busy = _forks.lock()  # held while it is read

    def receive(self, channels: Sequence[str], seconds: float) -> Received:
        """Return the messages of *seconds*, the beginning of the subscription, or the error that prevents it."""
        with self._busy:
            received = self._receive(channels, seconds)
        if self._closed:
            self._hang_up()
        return received

    def _receive(self, channels: Sequence[str], seconds: float) -> Received:
        try:
            anew = self._connection is None
            if anew and not self._closed:
                self._subscribe(channels)
            if self._closed or not self._executor.leads(self._source, channels):  # perhaps as we connected
                self._hang_up()
                return Received("cut")
            if not anew and (commands := self._changing(channels)):
                self._connection.send_packed_command(commands)
            if ops := self._announcing():
                self._executor.run_all(ops)
            return Received("anew") if anew else self._state(self._read(seconds))
        except (errors.RedisError, OSError) as error:
            self._hang_up()
            return self._failed(error, channels)
        except Exception as error:
            if not self._closed:  # else it was closed under us, which may look like anything
                raise
            return Received("cut", error=error)

    def _subscribe(self, channels: Sequence[str]) -> None:
        for _ in range(REDIRECTED_AT_MOST):
            try:
                return self._subscribe_at(channels)
            except errors.ResponseError as error:
                self._hang_up()
                self._refused(error, channels)
        raise errors.ConnectionError(f"the slot of {channels[0]} is passed from node to node")

    def _subscribe_at(self, channels: Sequence[str]) -> None:
        source = self._executor.source(channels)
        if source is not self._source:
            self._source, self._pool = source, own_pool(source, redis.ConnectionPool, NoRetry(NoBackoff(), 0))
            self._pool.connection_kwargs["protocol"] = 2
        connection = self._connection = self._pool.get_connection()
        connection.send_packed_command(self._subscribing(channels))
        for _ in channels:
            connection.read_response(disable_decoding=True)
        self._fresh()

    def _read(self, seconds: float) -> list[tuple[str, bytes]]:
        connection, found = self._connection, list[tuple[str, bytes]]()
        ready = connection.can_read(timeout=seconds)
        if not ready and self._idle():
            connection.send_packed_command([PING])
        while ready:
            try:
                found += self._message(connection.read_response(disable_decoding=True))
            except errors.MovedError as error:
                self._moved(error)
            ready = len(found) < 1000 and connection.can_read(timeout=0)
        return found

    def _hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.disconnect()
            self._pool.release(connection)

    def close(self) -> None:
        """Close the subscription for good. A `receive` under way returns, and closes the connection."""
        self._closed = True
        if self._busy.acquire(blocking=False):
            try:
                self._hang_up()
            finally:
                self._busy.release()
        elif (connection := self._connection) is not None:
            cut(connection)

    abandon = close
