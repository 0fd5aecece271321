-- The tables of headrace.sql, version 1, for SQLite 3.35 or later.

-- A row is a job to come. The job exists if, and only if, the transaction that wrote the row was committed.
CREATE TABLE headrace_outbox (
    position INTEGER PRIMARY KEY AUTOINCREMENT,  -- jobs of a queue are enqueued in this order; never used again
    version INTEGER NOT NULL DEFAULT 1,  -- of this table, when the row was written; a relay leaves newer rows alone
    namespace TEXT NOT NULL DEFAULT 'headrace',
    queue TEXT NOT NULL,
    job_id TEXT NOT NULL DEFAULT (lower(hex(randomblob(16)))),  -- the id of the job: a row sent twice is one job
    payload BLOB NOT NULL,  -- as the codec of the queue encodes it
    headers TEXT NOT NULL DEFAULT '{}',  -- a JSON object of texts; a trace is its traceparent and tracestate
    priority INTEGER NOT NULL DEFAULT 0,
    job_key TEXT,
    delay_ms INTEGER,  -- counted from written_ms, by the clock of this database
    due_ms INTEGER,  -- a moment by the clock of the Redis server, since the epoch; in place of delay_ms
    written_ms INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    refused TEXT,  -- why the row can't be a job; NULL it to try again
    UNIQUE (namespace, queue, job_id)
);
CREATE INDEX headrace_outbox_next ON headrace_outbox (namespace, queue, position) WHERE refused IS NULL;
CREATE INDEX headrace_outbox_refused ON headrace_outbox (namespace, queue) WHERE refused IS NOT NULL;
CREATE INDEX headrace_outbox_keys ON headrace_outbox (namespace, queue, job_key, position) WHERE job_key IS NOT NULL;

-- A row is a job whose effects are committed.
CREATE TABLE headrace_inbox (
    queue TEXT NOT NULL,
    job_id TEXT NOT NULL,
    enqueued_ms INTEGER NOT NULL,  -- when the job was enqueued first: a later job of the same id is another job
    attempt INTEGER NOT NULL,
    version INTEGER NOT NULL DEFAULT 1,
    done_ms INTEGER NOT NULL DEFAULT (CAST((julianday('now') - 2440587.5) * 86400000 AS INTEGER)),
    PRIMARY KEY (queue, job_id, enqueued_ms)
);
CREATE INDEX headrace_inbox_done ON headrace_inbox (done_ms);
