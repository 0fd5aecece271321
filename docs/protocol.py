"""Write docs/reference/redis-protocol.md from the headers of the scripts.

    python docs/protocol.py [--check]

With `--check` nothing is written; the exit status says whether the page is fresh.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from headrace._protocol.keys import BEHIND, GROUP, IDLE, LIMITED, PARKED, Keys
from headrace._protocol.queue_ops import Ops
from headrace._protocol.script import header, names, script

PAGE = Path(__file__).parent / "reference" / "redis-protocol.md"

# Every key there is: its type, and what it holds.
PARTS = {
    "jobs": ("stream", f"The jobs that wait or are leased; its one consumer group is `{GROUP}`."),
    "jobs:<level>": (
        "stream",
        "The jobs of a priority level behind the first, until it is their turn.",
    ),
    "wake": (
        "stream",
        "Tokens that wake a reader blocked on `jobs` when a job was parked or came to a later level, or something is due first: at most 16.",
    ),
    "ids": (
        "hash",
        "Job id → the entry that carries the job (`<entry>.<level>` in a level's stream), `delayed` or `blocked`; "  # noqa: ISC004
        "for jobs with an id of their own.",
    ),
    "leases": (
        "zset",
        "Entry → deadline in ms, for leases whose duration is not their worker's own; `lines` → `inf` while there are any.",
    ),
    "released": (
        "hash",
        "Entry (id, when delayed; `<entry>.<level>` in a level's stream) → how many of the job's deliveries spent no attempt.",
    ),
    "delayed": ("zset", "Job id → when it is due, in ms of the server's clock."),
    "bodies": ("hash", "Job id → the fields of a delayed job, a flat list packed with cmsgpack."),
    "blocked": (
        "hash",
        "Job id → the fields, packed, of a flow's job that waits for its children.",
    ),
    "flows": (
        "zset",
        "Id of a flow's job → 2^50 × 0, or × what happened to it outside of the flow: 1 completed, 2 died, "  # noqa: ISC004
        "3 cancelled or deleted, 4 redriven, 5 is to be cancelled; plus the nonce of its entry into the stage.",
    ),
    "index": ("zset", "Of a flow: `attribute LF value LF run`, for runs that go on."),
    "flow:<id>": (
        "hash",
        "A run of a flow: `state`, `started`, `ended`, `attributes` (JSON), and for each of its jobs "  # noqa: ISC004
        "`at:<id>` (state, stage, nonce of its entry into that, and of the fan-out it is of), `result:<stage>:<id>`, `left:<stage>:<id>` (ms), and what fan-outs need; under a TTL once it has ended.",
    ),
    "dead": (
        "stream",
        "Dead letters, oldest first: `reason`, `worker`, `released`, then the job's own fields.",
    ),
    "schedules": (
        "hash",
        "Name → timing, policy for missed ticks, fields of the jobs, and time and id of the last run, packed with cmsgpack.",
    ),
    "recurring": (
        "hash",
        "Worker → the set of schedules that its code declares; `=` and a set → their names, packed. Once no live worker has a set, those schedules end.",
    ),
    "ticks": (
        "zset",
        "Name of a schedule → when its next job is due, in ms; plus 2 × 10^14 while it is paused.",
    ),
    "workers": (
        "zset",
        "Worker → until when it counts as alive, in ms; 0 once it was declared dead.",
    ),
    "registered": (
        "hash",
        "Worker → `<ms since when its beats are unbroken> <ms that its leases last>`.",
    ),
    "stats": (
        "hash",
        "Since the beginning: `enqueued`, `completed`, `cancelled`, `deleted`, `dead_trimmed`; "  # noqa: ISC004
        "`added` counts the entries that scripts put into `jobs`, to tell them from bare `XADD`s; "
        "`history` is how many ends are kept, and for how many ms; `listening` is there while somebody may listen to events, 2 if perhaps by `SSUBSCRIBE`; `levels` is how many priority levels there are behind the first; "
        "`terms` is the structure of the queue's terms, `offers` which one each live worker declares; "
        "`concurrency` is how many handlers each worker is to run at once, "
        "`declared` is how the queue is meant to be used, in the words of those who use it, and `declaration` "
        "how often that has changed; `largest` is the size of the largest job, if above 4 KiB, since a sweep last found the streams empty; "
        "`sweep` is where the sweep for expired leases is, `pulse` since when the queue has been looked after without a gap, "
        "`shards` is the version of the table that has sealed this shard, `heir` says that it has taken over from others, `drained` since when it is empty, `trends` when the last record of those was taken, if they are declared, "
        "`gate` until when producers wait for room, and at which number of waiting jobs they are told, "
        "`rewind` how far moments have been moved since the clock went back, "
        "`healed` the last entry there was when a lost group was made anew, until all up to it are in front.",
    ),
    "shards": (
        "hash",
        "Of a group, not of a queue: `<namespace>:{<group>}:shards`. `version`, and the number of each shard → the salt of its tag, the first and the last CRC-32 of its keys, and its state: `open`; `sealing`, and its heirs `opening`; `draining`. `queue:<name>` for each queue of the group; after a change `numbers`, of shards that there were, `next`, that of the next shard, and `past:<name>`, what shards counted that are gone.",
    ),
    "outbox": (
        "hash",
        "Of a shard: name → a follow-up on its way to another shard: id or empty, `@<ms>` when it is due or empty, the list of its fields, packed with cmsgpack. "  # noqa: ISC004
        "A name is the CRC-32 of its key or id in hexadecimal, its queue, and a nonce, with a blank between each.",
    ),
    "outdue": ("zset", "Name of a job in `outbox` → when it came there, in ms."),
    "closing": (
        "zset",
        "`<shard> <queue> <nonce>` of what has come to its shard → since when that is known, in ms.",
    ),
    "handed": (
        "zset",
        "Nonce of a job that came from another shard → until when it is kept, in ms, so that it comes once: 30 days, and ten minutes from when the outbox says that it is not sent again.",
    ),
    "control": (
        "channel",
        (
            "Tells the workers which leased entries were cancelled: their IDs, or `*` when the queue was deleted. "
            "`active`: a worker has begun, or rests no more. "
            "`ended` and the prefix of a queue: children there have ended, of runs here."
        ),
    ),
    "events": (
        "channel",
        'One channel per kind, `events:<kind>`: `{"at": ms, "ids": [...], "worker": ...}`; without `ids` it is all.',
    ),
    "limited": (
        "zset",
        "Entry → when its turn is, in ms, for those that a rate limit holds back, or that were released with a pause.",
    ),
    "turns": (
        "hash",
        "Where jobs of a key are handed out one at a time: `k<key>` → the entry whose turn it is, `e<entry>` → the key, of "  # noqa: ISC004
        "that entry and of those read behind it.",
    ),
    "behind": (
        "zset",
        "The entries read behind another of their key, by key and entry: `<bytes of the key>:<key>`, and for both numbers "  # noqa: ISC004
        "of the entry ID a letter for how many digits they have (`a` 1) and these. All scores are 0.",
    ),
    "deaths": (
        "hash",
        "Entry whose holder has died → how often that was with other jobs of the queue, and how often with none; `turn`: "  # noqa: ISC004
        "where some of them are to run alone, whose turn it is; `cursor`: where the search for entries that are gone goes on.",
    ),
    "rates": (
        "zset",
        "Token buckets that are not full: a member for each → when it will be full; and who waits for one is due last.",
    ),
    "terms": (
        "hash",
        "What `fair` and `limits` the queue has: `structure` in words; `packed`: the same and "  # noqa: ISC004
        "the numbers of limits and rates, by cmsgpack; `w<path>`: a weight; `e<slot>`: the limit of one value; `weighted`: there are such fields, `1`: weights, too; `mean`: µs that a job runs; `again`: where the search for lines that may run goes on; `halved`: ms when `busy` was halved; `next`: the terms to come, "
        "while jobs of the old ones leave their lines.",
    ),
    "shares": (
        "hash",
        "Of the values that have jobs: `a<node>` → its credit in µs, the mean run time of its jobs in µs, how many "  # noqa: ISC004
        "are leased, its turn as in `ready`, the median and the 95th percentile of its dwell in ms, about; `v<node>` → the "
        "round of the old ring of its children, and which ring is visited next, `n` or `o`; `l<line>` → `!<slot>` while it is "
        "in `stopped`, or its place in `ready`; `c` → the number of the last turn.",
    ),
    "lines": (
        "zset",
        "`<line> <place>` of each waiting job that was looked at, with `+` behind it if the job came back. All scores are 0.",
    ),
    "ready": (
        "zset",
        "The rings: `<node> <n or o, for new or old><round, 16 digits><turn, 16 digits> <child>`, and where limits or rates have further keys "  # noqa: ISC004
        "`<node of a value> <place of the first job> <line>`. All scores are 0.",
    ),
    "stopped": (
        "zset",
        "`<slot> <level><turn, 16 digits><line>` of each line that waits for a slot; `*`: the limit of the queue stopped a lease.",
    ),
    "resting": ("zset", "Line → when its rate limit has a token, in ms."),
    "held": (
        "hash",
        "Leased entry → since when in ms, its charge in µs (after `=` if that is its cost), the number of jobs in its batch, "  # noqa: ISC004
        "`lp` of its line, and `lp` of each of its slots.",
    ),
    "slots": (
        "zset",
        "`<slot> <place>` of each leased entry, for each limit with a key. All scores are 0.",
    ),
    "busy": (
        "zset",
        "Value, as its node without the level → ms of share; halved each minute; at most 100.",
    ),
    "settled": (
        "list",
        "`@<ms>` and what `held` had of entries that ended then; the next `lease_fair` measures them.",
    ),
    "ends": (
        "hash",
        "Job id → how it ended, if the queue keeps a history: state, ms, attempt (0 unknown), 1 with a result or 0, worker "  # noqa: ISC004
        "or `-`, reason, a blank between them; expires with the last of them, after `history_ttl`.",
    ),
    "ended": ("zset", "Job id → when it ended, in ms, beside `ends`."),
    "steps": (
        "hash",
        "The records of runs: jobs whose handlers take steps. Id (or entry, for a job without one) → the run, packed with "  # noqa: ISC004
        "cmsgpack: the number of its records, their bytes, ms of the job's first enqueue, the numbers of its open waits and "
        "signals by name, and the entry of its dead letter. `<id> TAB <number>` → a record: name, kind (`step`, `once`, "
        "`sleep`, `wait`, `signal`), ms when it began and ended (0: not yet), attempt, value (false: none), ms when it is "
        "due (0: never). `<id> TAB p` → the progress: `<ms> <fraction> <text>`. A value begins with `j` (JSON), `b` "
        "(bytes) or `c` (of the codec).",
    ),
    "asleep": (
        "zset",
        "Entry of a suspended run → when it is due, in ms; `inf` for a wait without a time-out.",
    ),
    "links": (
        "hash",
        (
            "Id of a child → its parent, packed by MessagePack: the prefix of the keys of its queue, its name "
            "in `steps` there, the ms of its first enqueue, the number of the child's record, and the child's "
            "depth. The end of the child removes it, and also writes `steps`, `asleep` and `wake` of the "
            "parent's queue if that is in this slot, else `reports`."
        ),
    ),
    "reported": (
        "zset",
        "Id of a child that has ended, and whose parent is in another slot → until when it starts no second time, in ms; expires with the last.",
    ),
    "reports:<prefix>": (
        "hash",
        "How children of runs in another slot have ended, where the keys of their queue begin so: id of the child → the "  # noqa: ISC004
        "parent's id, ms of its first enqueue, the number of the record, the state, the result or reason, and its bytes, by MessagePack. Workers "
        "of the parent's queue fetch them; expires after 30 days.",
    ),
    "afar": (
        "zset",
        "The prefix of the keys of each queue in another slot in which runs have children → when one was started, or its end was learned, in ms.",
    ),
    "pinned": (
        "hash",
        "Entry of a run that was held back for a worker of another build → until when, in ms, and the build that began it.",
    ),
    "cancels": (
        "zset",
        "Id of a job that was cancelled → until when `ended` tells of it, in ms; expires with the last.",
    ),
    "taken": (
        "zset",
        "Id that is taken without a job, for it was completed or added a while ago → until when, in ms; expires with the last.",
    ),
    "gate": (
        "stream",
        "Tells producers that wait for room that there is some; they block on it by `XREAD`. Expires after a minute.",
    ),
    "relayed": ("hash", "What the relay of the queue's SQL outbox has told last; for a week."),
    "facts": (
        "hash",
        "The facts of each worker, as it reported them, and at `?` and its name the request of an operator; for a day.",
    ),
    "tallies": (
        "hash",
        "What workers have counted: `m<minute modulo 120>`, `t<ten minutes modulo 144>` and `v<minute modulo 60>` → a record, "  # noqa: ISC004
        "which `lua/lib/tally_records.lua` describes; expires a day after the last.",
    ),
    "trends": (
        "string",
        "What the counts were, minute by minute and hour by hour, if trends are declared: 2,880 and then 2,160 records of "  # noqa: ISC004
        "36 bytes, each at the place of its minute, or hour, modulo as many. A record is nine unsigned numbers of 32 bits, "
        "the highest byte first: seconds of the clock (of an earlier turn: there is none); `enqueued`, `completed`, and what "
        "was cancelled, deleted or trimmed, since the beginning, modulo 2^32; waiting and parked, leased, delayed and "
        "blocked, dead; ms that the oldest of the next has waited.",
    ),
    "lane:<lane>": (
        "string",
        "The number and the reply of a lane's last call; expires after ten minutes.",
    ),
    "result:<id>": ("string", "What a completion kept; expires after `result_ttl`."),
}

FIELDS = {
    "data": "The payload, never enveloped. The only field a job must have.",
    "id": "The job's id, if it is not the ID of its first entry.",
    "attempt": "Deliveries carried over from earlier entries, when the job went to the back.",
    "enq": "When it was first enqueued, in ms, if that is not the time in the entry's ID.",
    "headrace-reason": "Why it was last retried, at most 500 bytes; scripts write it, producers do not.",
    "headrace-children": "Of a flow's job, in a history: how many of its children completed, failed and were cancelled, and "
    "after the byte 30 each the id, stage and state, with the byte 31 between them. 16 KiB at most.",
    "headrace-attempts": "Its attempts that have ended, in a queue with a history: see `lib/failure.lua`. 16 KiB at most.",
    "headrace-traceback": "Where, at most 4,096 bytes, if the worker keeps tracebacks; also in a dead letter.",
    "headrace-priority": "A header: the job's priority level, one digit, unless that is 0.",
    "headrace-key": "A header: the key of the job, which it shares with those that belong to it, if it was given one.",
    "headrace-from": "A header of a job that was moved: the queue of its first enqueue.",
    "headrace-cost": "A header: the job's cost in mean run times, a positive number, for queues with `fair`.",
    "headrace-unique": "A header: for how many ms the job's id stays taken once it is completed.",
    "headrace-flow": "A header: the key of the run's state, for a job of a flow.",
    "headrace-nonce": "A header: the nonce of its entry into this stage, for a job of a flow; it tells a dead letter from others of its id.",
    "any other": "A header: `traceparent`, `tracestate`, `baggage`, `headrace-attempt` (where it was tried before: a traceparent), or one of yours.",
}

INTRO = """\
<!-- Written by docs/protocol.py from the headers of src/headrace/lua/*.lua. Do not edit. -->

# Redis protocol

This page is the contract between headrace and other languages:
the keys, the fields of an entry, and the scripts with their arguments and replies.
How little of it a producer needs:
[produce from another language](../how-to/produce-from-another-language.md);
how a worker puts it together:
[consume from another language](../how-to/consume-from-another-language.md).

## As data

```sh
headrace protocol > headrace.json
```

(extra `cli`) writes what is fixed here as one JSON object, for a client to load rather than to copy:

| member | what it holds |
|---|---|
| `scripts` | By name: `source`, the text to send, with its fragments; its `sha1`; the names of its `keys` and `args`, in order. |
| `key`, `lane`, `result` | Templates of keys. |
| `group`, `parked`, `idle` | The consumer group, and its reserved consumers. |
| `fields` | The fields of an entry that are no headers, in their order. |
| `names` | Regular expressions for `namespace`, `queue` (and at most `queue_characters`) and `worker`; an id has 1 to `id_bytes` bytes of UTF-8, and `never_in_id` matches nowhere in it. |
| `limits` | Of one script call: `jobs`, and about so many `bytes` of payloads and fields; `headers` of one job. |
| `defaults` | Of the settings, in ms where they are times; `budget` is how long a call is asked again. |
| `again` | Words in the errors after which asking again can help. |
| `wait`, `wait_paused` | The words of the blocking wait; and of the one while nothing is handed out. |

Keep the file with your client, and write it again when you upgrade headrace.
"""

NAMES = """\
## Names

The rules are in `names` of the JSON; nothing is escaped, what does not match is refused.

- A queue's name: 1-200 letters, digits, `.`, `_`, `-`, and at most one `/`, between two parts. A namespace: 1-100 of the same, without `/`.
- A worker's name: 1-200 letters, digits, `.`, `_`, `-`; not a reserved one.
  It must be new for each start, and for each queue that the process works on: let it end in random digits.
- An id: 1-500 bytes of UTF-8 without control characters (U+0000-U+001F, U+007F-U+009F).
- A header: text to text, UTF-8; its name is not empty and not one of our fields.
"""

JOBS = """\
## Reading a job

Scripts hand out an entry ID, its fields (name and value in turn), `count` (how often Redis has delivered this entry)
and `releases` (how many of the deliveries spent no attempt).
From them:

- `id`: the field `id`, or else the entry ID.
- `payload`: the field `data`. An entry without it is not a job: dead-letter it, with that as its reason.
- `token` = field `attempt` (0 if there is none) + `count`: grows with every delivery of the job.
- `attempt` = `token` - `releases`, at least 1: the first delivery is attempt 1.
- first enqueued, in ms: the field `enq`, or else the part of the entry ID before the `-`.
- headers: all other fields (`headrace-reason`, `headrace-traceback`, `headrace-attempts` and `headrace-children` are none: a client of before 0.1.0 that knows nothing of them shows them as headers, and its `retry` leaves them as they are).

Of a field of ours that is there twice the first counts.
An `attempt` that is not 1-9 decimal digits counts as 0, an `enq` that is no decimal number below 2^53 likewise; a foreign producer may write anything.

Entry and `count` are what settles the job; with the worker's name they are the fence.
A script that takes `worker` and finds another holder or another count answers 0 for that job and changes nothing.
"""

SCRIPTS = """\
## Scripts

The `source` in the JSON is ready to be sent.
It is made of the files of the package, under `headrace/lua/`:
before a script's own lines stand the functions of `kernel`, `lib` and `features` that it calls.
Behind a script's own keys come those of the features that it uses: each file of `features/` names its keys.
Send `EVALSHA` with the hash, and where that is answered with `NOSCRIPT` (nothing has run) `EVAL` with the source;
or `EVAL` always.

KEYS are the names of parts, to be completed by the template of the queue;
`lane` and `result` stand for the keys of those templates.
`...` in KEYS or ARGV stands for as many as there are.
Arguments are strings: numbers are decimal integers, payloads and header values the bytes themselves.
Replies are integers, byte strings and arrays of them, in RESP2 and RESP3 alike.

Times are integer milliseconds of the server's clock, durations are rounded up.
A delay is the empty string for none, `+ms` from the server's now, or `@ms` for a moment since the epoch; one that is not in the future is none.
Costs are server time, measured on one machine: read them as orders of magnitude.

### Calls that may be sent again

Where the first key is `lane`, the first argument is `call`: the call is recorded.
It is sent again, if need be, with the same lane, number, keys and arguments, and then is answered from the record of the first, and does not act again.

- A lane is a name drawn at random (16 hex digits), with one call in flight at a time.
  Keep the free ones and reuse them: each leaves a key that lives for ten minutes.
- The calls of a lane are numbered: 1, 2, 3…
  A number may be used again only to repeat its call.
- Send a call again when the connection broke or was refused, when no reply came in time, and when the reply is an error in whose first 300 characters there is a word of `again` (for `READONLY` connect anew).
  Any other error is final.
  Pause in between, at random and growing, up to 2 s; give up after `budget` ms.
- A lane on which a call had to be sent again is not used for another: a copy may still be on its way.
- Turn off what your Redis client repeats by itself.
- With `call` empty nothing is recorded, and a repeated call acts again: so in a transaction.

The scripts without a lane change nothing, or come to the same when they are repeated.
Of a repeated `lease` the answer has only what its caller still holds, all of it in `taken`.
"""


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(head) + " |", "|" + "---|" * len(head)]
    return [
        *lines,
        *("| " + " | ".join(c.replace("|", "\\|") for c in row) + " |" for row in rows),
        "",
    ]


def literal(text: str) -> str:
    """Return *text* as code, whatever it holds."""
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def page() -> str:
    """Return the whole page."""
    keys = Keys.of("emails")
    out = [INTRO, "## Keys", ""]
    out += [
        "`<namespace>:{<group>}:<queue>:<part>`.",
        "The group is the queue's name before its first `/`, and the hash tag:",
        "all keys of a group are in one hash slot.",
        f"The queue `emails` in the default namespace has its jobs in `{keys.key('jobs')}`.",
        "",
    ]
    out += table(
        ("part", "type", "what it holds"), [(f"`{p}`", t, s) for p, (t, s) in PARTS.items()]
    )
    out += [NAMES, "## Fields of an entry", ""]
    out += table(
        ("field", "meaning"),
        [(f if f == "any other" else f"`{f}`", meaning) for f, meaning in FIELDS.items()],
    )
    out += [
        "`XADD` with `data` alone is a whole job. Keep this order of the fields: entries that share it cost less memory.",
        "",
        JOBS,
        "## Reserved consumers",
        "",
        f"The group `{GROUP}` has one consumer per worker, and seven that are nobody:",
        "",
        f"- `{PARKED}` owns what was released or reclaimed. It is handed out before any new entry.",
        f"- `{PARKED}:s` owns jobs whose holder has died twice. A call hands out one of them alone, after all others or a lease.",
        f"- `{IDLE}` owns entries that woke a blocked reader and that nobody has leased yet.",
        "  They come next.",
        f"- `{LIMITED}` owns entries that a rate limit holds back.",
        "  They come before all others once it is their turn.",
        f"- `{BEHIND}` owns entries that wait behind another of their key, where one of a key is handed out at a time.",
        f"  When that one leaves the queue, the next goes to `{PARKED}`.",
        f"- `{PARKED}:asleep` and `{PARKED}:waits` own suspended runs, which sleep or wait for a signal. They come before all",
        "  others once they are due by `asleep`. Each has the deadline `inf` in `leases`, so that no sweep takes it.",
        "",
        "What these hold belongs to whoever calls `lease` next.",
        "So nothing has to be adopted after an error: a job that a blocking wait brought while its reply was lost",
        "is with `idle`, and what a `lease` handed out while its reply was lost is in the answer to the same call, sent again.",
        "A worker that gives such a call up does not know what it holds:",
        "it should `leave`, which gives that back, and go on under a new name.",
        "",
        "The only command that is not a script is the blocking wait",
        "(how it works: [leases and reclaim](../explanation/leases-and-reclaim.md)):",
        "",
        "```text",
        " ".join(str(word) for word in Ops(keys).wait(1.0)),
        "```",
        "",
        "While `lease` answers that nothing is handed out (`known` is 2) the jobs must not be read at all, and one waits so:",
        "",
        "```text",
        " ".join(str(word) for word in Ops(keys).wait(1.0, paused=True)),
        "```",
        "",
        "Use its reply only to know that there may be something: call `lease` with `woken` 1 after it, whatever it brought,",
        "also for an error such as `NOGROUP`, which `lease` heals.",
        "It blocks for a few seconds at most, or until the next delayed job is due if that is sooner (`next_due`), and never for 0 ms,",
        "which would be for ever; on a connection of its own.",
        "",
        SCRIPTS,
    ]
    for name in names():
        head = header(name)
        out += [f"### {name}", "", head.purpose[0].upper() + head.purpose[1:], ""]
        for section, text in (
            ("KEYS", ", ".join(script(name).keys)),
            ("ARGV", head.sections["ARGV"]),
        ):
            shown = "none" if text == "(none)" else literal(text)
            out.append(f"- **{section}** {shown}")
        out += [f"- **REPLY** {head.sections['REPLY']}", f"- **COST** {head.sections['COST']}", ""]
        if head.notes:
            out += [head.notes, ""]
        if features := script(name).features:
            owned = (
                f"{feature} {literal(', '.join(found))}" for feature, found in features.items()
            )
            out += [f"Keys of features: {'; '.join(owned)}.", ""]
    return "\n".join(out).rstrip() + "\n"


def main() -> int:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--check", action="store_true", help="write nothing; fail if the page is stale"
    )
    if not parser.parse_args().check:
        PAGE.write_text(page(), "utf-8")
    elif not PAGE.exists() or PAGE.read_text("utf-8") != page():
        print(f"{PAGE} is stale: run python docs/protocol.py", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
