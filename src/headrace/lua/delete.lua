-- delete: remove the queue with all it has, its schedules too. The streams' keys stay, so that entry IDs never repeat.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), stats (hash), taken (zset), gate (stream),
--        trends (string)
-- ARGV   call
-- REPLY  {removed, more}: removed: how many jobs, in any state · more 1: jobs are left, call again · 0: that was all
-- COST   50 us, however many jobs: the server frees them in the background; of flows 10 us per job, at most 250 a call
-- Reports of children to runs in other slots stay until they are fetched. If there are more jobs of flows, or children of runs, than a call has time for, they go first, each as if cancelled. The
-- last call removes the rest at once.
level_streams(stats, levels)
local listening = listeners(stats, events, 'deleted')
require_streams(jobs, wake, dead)
require_hashes(ids, released, bodies, blocked, outbox, turns, steps)
require_sorted_sets(leases, delayed, flows, limited, behind, asleep)
-- Jobs of flows in this queue: unmarked, or redriven. Marked jobs have left, but their flow has not handled that yet.
-- The first and the third range are from before there were nonces.
local listed = {}
local ranges = {
  {NOTHING, NOTHING}, {LEAST_NONCE, NONCES - 1}, {REDRIVEN, REDRIVEN}, {REDRIVEN * NONCES, (REDRIVEN + 1) * NONCES - 1},
}
for _, range in ipairs(ranges) do
  local from, to = string.format('%.0f', range[1]), string.format('%.0f', range[2])
  for _, id in ipairs(redis.call('ZRANGEBYSCORE', flows, from, to, 'LIMIT', 0, 251 - #listed)) do listed[#listed + 1] = id end
end
redis.call('UNLINK', lane) -- a full server permits it, and then all later writes
local q = {
  -- @queue
  levels = levels,
}
if redis.call('EXISTS', links) == 1 then
  runs.children_ended(q, redis.call('HRANDFIELD', links, 250), 'deleted')
  if redis.call('EXISTS', links) == 1 then return answer({0, 1}) end
end
local gone = 0
if #listed > 250 then
  local lost = {}
  for i = 1, 250 do
    local removed, entry = remove_by_id(q, listed[i], 'deleted')
    gone, lost[#lost + 1] = gone + removed, entry
    if removed == 0 then mark_one(flows, listed[i], REMOVED) end
  end
  tell_holders(control, table.concat(lost, ' '))
  if listening.deleted then publish(events, 'deleted', {unpack(listed, 1, 250)}) end
  return answer({gone, 1})
end
local away = redis.call('HLEN', outbox) -- under way to other shards, and not enqueued yet
gone = redis.call('XLEN', jobs) + redis.call('ZCARD', delayed) + redis.call('HLEN', blocked) + redis.call('XLEN', dead)
for _, stream in ipairs(levels) do gone = gone + redis.call('XLEN', stream) end
-- Entries of foreign producers, which only the streams have counted.
local added = ever_added(jobs, levels)
if added then
  local foreign = added - tonumber(redis.call('HGET', stats, 'added') or 0)
  if foreign > 0 then redis.call('HINCRBY', stats, 'enqueued', foreign) end
  added = 0
end
for level = 0, levels.n do
  local stream = levels[level] or jobs
  if redis.call('EXISTS', stream) == 1 then
    local groups, last = redis.call('XINFO', 'GROUPS', stream), redis.call('XADD', stream, '*', 'data', '')
    redis.call('UNLINK', stream) -- with the pending list: holders find their leases lost
    redis.call('XADD', stream, last, 'data', '')
    redis.call('XDEL', stream, last)
    if added then added = added + 1 end
    for _, group in ipairs(groups) do redis.call('XGROUP', 'CREATE', stream, group[2], '0') end
  end
end
if redis.call('EXISTS', jobs) == 1 then
  redis.pcall('XGROUP', 'CREATE', jobs, 'workers', '0')
  redis.call('UNLINK', wake)
  redis.call('XGROUP', 'CREATE', wake, 'workers', '0', 'MKSTREAM')
end
if added and added > 0 then redis.call('HSET', stats, 'added', added) end
redis.call(
  'UNLINK', ids, leases, released, delayed, bodies, blocked, schedules, ticks, dead, limited, rates, ends, ended,
  recurring, taken, gate, trends, tallies, outbox, outdue, turns, behind, deaths, asleep, steps, held, slots, settled,
  stopped, terms, shares, lines, ready, resting, busy, cancels, pinned, afar)
for _, id in ipairs(listed) do mark_one(flows, id, REMOVED) end
redis.call('HDEL', stats, 'paused', 'declared', 'gate', 'trends', 'turns', 'levels', 'terms')
if gone > 0 then redis.call('HINCRBY', stats, 'deleted', gone) end
tell_holders(control, '*')
if listening.deleted then publish(events, 'deleted') end
return answer({gone + away, 0})
