"""The handlers of isolated tasks, in child processes. Their fork server imports this, and so all
tasks, once.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from headrace import Worker
from headrace.django._backend import backend_of
from headrace.django._running import Runner
from headrace.django._tasks import discovered

discovered()


def run_of(alias: str, queue: str, name: str, own: Collection[str]) -> Callable[[Any], Any]:
    backend = backend_of(alias)
    worker = Worker(backend.settings.url, name=name, namespace=backend.settings.namespace)
    return Runner(backend, queue, worker, own).run
