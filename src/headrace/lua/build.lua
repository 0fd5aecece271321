-- build: note the build of the worker that begins a run. Only the present holder may do so.
-- KEYS   jobs (stream)
-- ARGV   worker, entry, delivery int, id, enq, build
-- REPLY  1 it is noted · 0 the run has a build, or the lease is lost
-- COST   10 us
-- id, enq: as in step. Its caller knows that no earlier delivery has made a record. It comes in one round trip with the
-- first record, and behind it if the server did not know this script.
require_hashes(steps)
if not held_by(jobs, worker, {entry}, {delivery})[1] then return 0 end
local run = runs.of(steps, id, enq)
if run.more.build then return 0 end
run.more.build = build
runs.write(steps, id, run)
return 1
