"""Tasks that are sent when a transaction of Django is committed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import define
from redis.exceptions import RedisError

from headrace.errors import describe_error
from headrace.platform import log_event

# seconds for a task, after one of the same transaction could not be sent: a request waits once
AGAIN_S = 0.1


@define
class Transaction:
    """The state of the tasks that one transaction sends."""

    failed: bool = False


@define(eq=False)
class Hook:
    """The hook that sends one task. Its failure is only logged, as the data is committed, and later
    hooks have to run.
    """

    send: Callable[..., None]
    task: Any
    id: str
    transaction: Transaction

    def __call__(self) -> None:
        try:
            if self.transaction.failed:
                self.send(timeout=AGAIN_S)
            else:
                self.send()
        except Exception as error:
            self.transaction.failed = True
            log_event(
                "task_not_sent",
                "%s, id %s: %s",
                self.task.module_path,
                self.id,
                describe_error(error),
                # the place tells nothing of an outage
                error=None if isinstance(error, RedisError) else error,
                queue=self.task.queue_name,
                job_id=self.id,
            )


def sent_on_commit(connection: Any, send: Callable[..., None], task: Any, id: str) -> None:
    """Have a task sent when the transaction of *connection* is committed. *send* takes `timeout=`,
    in seconds.
    """
    hooks = (hook for _, hook, *_ in reversed(connection.run_on_commit))
    before = next((hook for hook in hooks if isinstance(hook, Hook)), None)
    connection.on_commit(
        Hook(send, task, id, Transaction() if before is None else before.transaction)
    )
