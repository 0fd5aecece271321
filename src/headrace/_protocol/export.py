"""The protocol as data, for clients in other languages. It has the scripts in full, fixed names,
rules, limits and defaults.
"""

from __future__ import annotations

from typing import Any

from headrace._model.checks import ENTRY_FIELDS, HEADERS_AT_MOST, KEPT_FIELDS, millis
from headrace._model.settings import QueueSettings, WorkerSettings
from headrace._model.steps import NAME_CHARACTERS, STEP_BYTES
from headrace._protocol import keys
from headrace._protocol.limits import (
    BYTES_PER_SCRIPT,
    HEALING_ERRORS,
    JOBS_PER_SCRIPT,
    RETRY_BUDGET_S,
)
from headrace._protocol.queue_ops import Ops
from headrace._protocol.script import fixed, header, names, script


def protocol() -> dict[str, Any]:
    """Describe the scripts and constants that a client in another language needs, in JSON's
    types."""
    queue = QueueSettings()
    worker = WorkerSettings()
    template = keys.Keys("<queue>", "<group>", "<namespace>:{<group>}:<queue>:")
    wait, pause = (
        [str(word) for word in Ops(template).wait(1.0, paused=paused)] for paused in (False, True)
    )
    for words in (wait, pause):
        words[words.index("BLOCK") + 1] = "<ms>"
    return {
        "key": template.key("<part>"),
        "lane": template.lane("<lane>"),
        "result": template.result("<id>"),
        "flow": template.flow("<run>"),
        "shards": template.shards,
        "group": keys.GROUP,
        "parked": keys.PARKED,
        "idle": keys.IDLE,
        "fields": [*ENTRY_FIELDS, *KEPT_FIELDS],
        "names": {
            "namespace": f"^{keys.NAMESPACE.pattern}$",
            "queue": f"^{keys.QUEUE.pattern}$",
            "queue_characters": keys.QUEUE_CHARACTERS,
            "worker": f"^{keys.WORKER.pattern}$",
            "never_in_id": keys.CONTROL.pattern,
            "id_bytes": keys.ID_BYTES,
        },
        "limits": {
            "jobs": JOBS_PER_SCRIPT,
            "bytes": BYTES_PER_SCRIPT,
            "headers": HEADERS_AT_MOST,
            "step_bytes": STEP_BYTES,
            "step_characters": NAME_CHARACTERS,
        },
        "defaults": {
            "namespace": Ops(template).namespace,
            "lease": millis(queue.lease),
            "heartbeat": millis(worker.heartbeat),
            "timeout": millis(worker.timeout),
            "max_attempts": int(queue.max_attempts or 0),
            "dead_limit": queue.dead_limit,
            "result_ttl": millis(queue.result_ttl),
            "budget": millis(RETRY_BUDGET_S),
        },
        "again": list(HEALING_ERRORS),
        "wait": wait,
        "wait_paused": pause,
        "scripts": {
            name: {
                "sha1": script(name).sha,
                "keys": fixed(script(name).keys),
                "args": header(name).args(),
                "source": script(name).source,
            }
            for name in names()
        },
    }
