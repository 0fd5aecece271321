"""Limits of scripts and of retries."""

from __future__ import annotations

# A script stays under about 5 ms, and under Lua's limit on unpack. The most jobs in one script that
JOBS_PER_SCRIPT = 1000  # adds or completes them, for 2 µs each
# leases, renews or releases them, looks up each holder, or moves them to the front
CLAIMS_PER_SCRIPT = 400
REWRITES_PER_SCRIPT = 100  # writes each of them again
LOOKS_PER_SCRIPT = 500  # looks at each, and removes or mends some
LISTED_PER_SCRIPT = 200  # lists them, payloads included
# leases them, if the answer should stay below 64 KiB, or the queue has levels: 15 µs each
LEASED_PER_SCRIPT = 250
BYTES_PER_SCRIPT = 1 << 20  # bytes in one script
COALESCED_BELOW = 100  # items of a call that may join others, under asyncio
OPS_PER_TRIP = 50  # operations in one round trip, each of which may be as large as a script may be
PAGES_IN_A_ROW = 100  # of one queue: then another queue has its turn
# seconds between two looks at data that others change, while no message says that they did
POLL_S = 1.0
# seconds that a call may take on which nothing depends, such as a declaration or a good-bye
COURTESY_S = 1.0
LOG_AGAIN_S = 60.0  # seconds between two warnings of the same cause
# seconds that an attempt needs at least: a shorter one would only make a known outcome unknown
ATTEMPT_S = 0.05
BLOCK_S = 5.0  # seconds that a blocked read of a worker lasts at most
RETRY_BUDGET_S = 45.0  # seconds of retries: longer than a Sentinel or cluster failover takes
SILENT_S = 15.0  # seconds for which a silent node or shard is left out
# seconds that the server keeps a call's answer, to give it again: see lua/lib/record.lua
RECORD_S = 600.0
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
