-- adopt: start a child of a run in another slot, unless that was done before.
-- KEYS   jobs (stream), wake (stream), ids (hash), stats (hash), streams...
-- ARGV   home, parent, enq, number int, depth int, id, delay, fields...
-- REPLY  1: it is started · 0: it was before, and may have ended · -1: it is not, as this shard is sealed
-- COST   25 us
-- home: the prefix of the keys of the parent's queue. parent, enq: its id and the ms of its first enqueue, as in step.
-- number, depth: as child_away answered them. id: of the child. streams: of all levels after the first.
local listening = listeners(stats, events, 'added')
require_streams(jobs, wake)
require_hashes(ids, bodies, stats, links)
require_sorted_sets(delayed, reported)
due_at(delay, 0)
local job = {unpack(ARGV, fields)}
whole(#job / 2, 1, 3900)
local level = level_of(job, #streams)
if level > 0 then require_streams(streams[level]) end
local gone = redis.call('ZSCORE', reported, id)
if gone or redis.call('HEXISTS', links, id) == 1 or redis.call('HEXISTS', ids, id) == 1 then return 0 end
if listening.sealed then return -1 end
local noted = listening.cancels and cancellations.present(cancels)
local q = {
  -- @queue without cancels
  added = 0, enqueued = 0, levels = {n = level, [level] = streams[level]}, cancels = noted,
}
-- pcall: an error of the first write (OOM, READONLY) comes out with its own code on 6.2 too
local written = redis.pcall('HSET', links, id, cmsgpack.pack({home, parent, enq, number, depth}))
if type(written) == 'table' and written.err then return written end
local _, _, first = add_job(q, clock(), id, delay, job)
count_added(q)
if first then wake_one(wake) end
if listening.added then publish(events, 'added', {id}) end
return 1
