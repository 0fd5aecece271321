"""Calls that wait for room in a queue, on threads. Each has its own connection, as threads are
few."""

from __future__ import annotations

from collections.abc import Callable

from headrace._protocol.op import Arg


class WaitQueues:
    """Like `_net/aio/wait_queue.WaitQueues`, without queues."""

    of_this_loop = True

    def __init__(self, block: Callable[[tuple[Arg, ...]], bool]) -> None:
        self._block = block

    def wait(self, command: tuple[Arg, ...], _seconds: float) -> bool:
        return self._block(command)

    def leave(self) -> None:
        """Do nothing, as no other thread waits for this one."""
