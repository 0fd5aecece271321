-- progress: note how far a job has come. Only the present holder may do so.
-- KEYS   jobs (stream), stats (hash)
-- ARGV   worker, entry, delivery int, id, enq, fraction, text
-- REPLY  1 noted · 0 the lease is lost
-- COST   15 us
-- fraction: from 0 to 1. text: at most 200 characters. This is the job's until it ends, or notes other progress.
require_hashes(steps)
if not held_by(jobs, worker, {entry}, {delivery})[1] then return 0 end
runs.write(steps, id, runs.of(steps, id, enq))
redis.call('HSET', steps, runs.field(id, 'p'), string.format('%.0f', clock()) .. ' ' .. fraction .. ' ' .. text)
if listeners(stats, events, 'progress').progress then publish(events, 'progress', {id}, worker, {fraction .. ' ' .. text}) end
return 1
