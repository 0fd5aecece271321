"""Limits of scripts and of retries."""

from __future__ import annotations

# A script stays under about 5 ms, and under Lua's limit on unpack. The most jobs in one script that
JOBS_PER_SCRIPT = 1000  # adds or completes them, for 2 µs each
CLAIMS_PER_SCRIPT = 400  # leases, renews or releases them, looks up each holder, or moves them to the front
REWRITES_PER_SCRIPT = 100  # writes each of them again
LOOKS_PER_SCRIPT = 500  # looks at each, and removes or mends some
LISTED_PER_SCRIPT = 200  # lists them, payloads included
BYTES_PER_SCRIPT = 1 << 20  # bytes in one script
BLOCK_S = 5.0  # seconds that a blocked read of a worker lasts at most
RETRY_BUDGET_S = 45.0  # seconds of retries: longer than a Sentinel or cluster failover takes
SILENT_S = 15.0  # seconds for which a silent node or shard is left out
RECORD_S = 600.0  # seconds that the server keeps a call's answer, to give it again: see lua/lib/record.lua
HEALING_ERRORS = (  # errors of a server that will recover, or is being replaced
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "TRYAGAIN",
    "BUSY",
    "MISCONF",
    "NOREPLICAS",
    "UNBLOCKED",
    "OOM",
)
