-- build: note the build of the worker that begins a run. Only the present holder may do so.
-- KEYS   jobs (stream)
-- ARGV   worker, entry, delivery int, id, enq, build
-- REPLY  1 it is noted · 0 the run has a build, or has begun without one, or the lease is lost
-- COST   10 us
-- id, enq: as in step. It goes before the first record of a run, in the same round trip.
-- @include held_by
-- @include number
-- @include require_types
-- @include runs
require_hashes(steps)
if not held_by(jobs, worker, {entry}, {delivery})[1] then return 0 end
local run = runs.of(steps, id, enq)
if run.more.build or run.number > 0 then return 0 end
run.more.build = build
runs.write(steps, id, run)
return 1
