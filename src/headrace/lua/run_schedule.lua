-- run_schedule: enqueue the job of a schedule now, whether it is paused or not. Its next tick stays.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), stats (hash)
-- ARGV   call, name
-- REPLY  the id of the job: '<name>@<ms>-now' · '' no schedule has that name
-- COST   20 us
local q = {
  -- @queue without delayed, bodies, cancels
  levels = known_streams(stats, levels),
}
require_streams(jobs, wake)
require_hashes(ids, schedules)
require_sorted_sets(ticks)
local timing, missed, fields = scheduled(redis.call('HGET', schedules, name) or '')
local due = tonumber(redis.call('ZSCORE', ticks, name) or 1e14)
-- One that moves to another shard is run there.
if not timing or due >= 1e14 and due < 2e14 or due >= 3e14 and due < 4e14 then return answer('') end
local listening, now, job = listeners(stats, events, 'added'), clock(), {}
local function id() return name .. '@' .. string.format('%.0f', now) .. '-now' end
while redis.call('HEXISTS', ids, id()) == 1 do now = now + 1 end -- of calls in the same ms
for i = 1, #fields do job[i] = fields[i] end
table.insert(job, 3, 'id')
table.insert(job, 4, id())
add_job(q, now, id(), '', job)
redis.call('HSET', schedules, name, cmsgpack.pack({timing, missed, fields, string.format('%.0f ', now) .. id()}))
if listening.added then publish(events, 'added', {id()}) end
return answer(id())
