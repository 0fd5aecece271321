-- tick: enqueue the jobs of one due schedule, and set its next due time. One caller wins each tick.
-- KEYS   jobs (stream), wake (stream), ids (hash), stats (hash)
-- ARGV   name, timing, due int, next, moments...
-- REPLY  1 done · 2 partly done, up to 250 jobs or 1 MiB: the next tick is the first missing one · 0 another caller was
--        faster, or the schedule has changed
-- COST   10 us + 10 us per tick
-- timing, due: as `schedules` gave them. next: ms of the next tick. moments: ms of each tick that gets its job now,
-- with the id '<name>@<ms>', unless the id is taken. At most 1,000.
whole(next)
local q = {
  -- @queue without delayed, bodies, cancels
  levels = known_streams(stats, levels), added = 0, enqueued = 0,
}
require_streams(jobs, wake)
require_hashes(ids)
local kept = redis.call('HGET', schedules, name)
local stored_timing, missed, job = scheduled(kept or '')
if stored_timing ~= timing or tonumber(redis.call('ZSCORE', ticks, name) or -1) ~= due then return 0 end
local listening, ids_added = listeners(stats, events, 'added'), {}
redis.call('ZREM', ticks, name) -- a full server permits it, and then all later writes; otherwise this tick would stop all workers
local size = 0
for _, field in ipairs(job) do size = size + #field end
local most = math.max(1, math.min(250, math.floor(1048576 / size)))
local done, last = 1, nil
for i = moments, #ARGV do
  if i - moments == most then
    next, done = ARGV[i], 2
    break
  end
  local fields, id = {}, name .. '@' .. ARGV[i]
  for j, field in ipairs(job) do fields[j] = field end
  table.insert(fields, 3, 'id')
  table.insert(fields, 4, id)
  local _, new = add_job(q, 0, id, '', fields)
  if new == 1 then ids_added[#ids_added + 1], last = id, ARGV[i] .. ' ' .. id end
end
count_added(q)
redis.call('ZADD', ticks, next, name)
if last then redis.call('HSET', schedules, name, cmsgpack.pack({timing, missed, job, last})) end
if listening.added then publish(events, 'added', ids_added) end
return done
