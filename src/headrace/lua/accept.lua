-- accept: add jobs from other shards, each once, even if several programs send it several times.
-- KEYS   jobs (stream), wake (stream), ids (hash), stats (hash), streams...
-- ARGV   since int, items...
-- REPLY  {taken, now, replicas, refused}: taken 1: the jobs are in the queue, or were before · 0: `since` is too long
--        ago, and nothing was done · now: this shard's time in ms · replicas: their number, or -1: none now, but one
--        lately · refused: the positions, from 1 on, of jobs that are new and refused, as this shard is sealed
-- COST   25 us + 6-8 us per job, at most 1,000 of them, or 1 MiB
-- since: a time of this shard from before the jobs were read from their outbox (0: unknown). A job that was read too
-- long ago may have arrived and ended since, and its nonce may be forgotten. Items: nonce, id or '', delay, number of
-- fields, the fields. streams: the streams of all levels after the first. A nonce stays in `handed` until its outbox
-- will not send it again (close), or for 30 days. A job whose id is taken is left as it is.
local READ_WITHIN, OPEN = 300000, 2592000000 -- ms: half of the time that close leaves; 30 days
local now = clock()
local info = redis.pcall('INFO', 'replication')
info = type(info) == 'string' and info or ''
local replicas = tonumber(string.match(info, 'connected_slaves:(%d+)') or 0)
if replicas == 0 and string.find(info, 'repl_backlog_active:1', 1, true) then replicas = -1 end
local listening = listeners(stats, events, 'added')
require_streams(jobs, wake)
require_hashes(ids, bodies, stats)
require_sorted_sets(delayed, handed)
local noted = listening.cancels and cancellations.present(cancels)
local at, some = items, {}
while at <= #ARGV do -- if one item is bad, no job is added
  due_at(ARGV[at + 2], 0)
  local size = 2 * whole(ARGV[at + 3] / 2, 1, 3900)
  some[#some + 1] = {nonce = ARGV[at], id = ARGV[at + 1], delay = ARGV[at + 2], fields = {unpack(ARGV, at + 4, at + 3 + size)}}
  at = at + 4 + size
end
whole(at - #ARGV, 1, 1)
if now - since > READ_WITHIN then return {0, now, replicas, {}} end
local fresh, tombs, refused, open = {}, {}, {}, string.format('%.0f', now + OPEN)
for place, job in ipairs(some) do
  local new = not tombs[job.nonce] and not redis.call('ZSCORE', handed, job.nonce)
  if new and listening.sealed then
    refused[#refused + 1] = place
  elseif new then
    fresh[#fresh + 1] = job
    tombs[#tombs + 1], tombs[#tombs + 2], tombs[job.nonce] = open, job.nonce, true
  end
end
local queues, ids_added = {}, {} -- by level
for _, job in ipairs(fresh) do
  local level = level_of(job.fields, #streams)
  if level > 0 then require_streams(streams[level]) end
  queues[level] = queues[level] or {
    -- @queue without cancels
    added = 0, enqueued = 0, levels = {n = level, [level] = streams[level]}, cancels = noted,
  }
  job.queue = queues[level]
end
if #fresh > 0 then
  -- pcall: an error of the first write (OOM, READONLY) comes out with its own code on 6.2 too
  local written = redis.pcall('ZADD', handed, unpack(tombs))
  if type(written) == 'table' and written.err then return written end
end
for _, job in ipairs(fresh) do
  local id, new, first = add_job(job.queue, now, job.id, job.delay, job.fields)
  if first then wake_one(wake) end
  if new == 1 then ids_added[#ids_added + 1] = id end
end
for _, queue in pairs(queues) do count_added(queue) end
forget_over(handed, now, 2000) -- always writes: a caller that waits for replicas also waits for the first call
if listening.added then publish(events, 'added', ids_added) end
return {1, now, replicas, refused}
