-- reclaim: put the jobs of dead workers and of expired leases back to the front; promote due jobs.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), stats (hash), trends (string)
-- ARGV   call, worker, timeout int, lease, limit count, ageing int
-- REPLY  {moved, again, declared, more, promoted, next_due, next_tick, rests, builds..., '', homes...}: again: ms until this caller should call
--        again, if that is within a second, or no work is due soon; otherwise -1 · declared workers newly found dead ·
--        more 1 = a dead worker has more jobs than one call moves, or a level has more jobs to raise · ms until the
--        next delayed or limited job, and the next tick of a schedule, is due, or -1 · rests: 1 if no work is due
--        soon; otherwise 0, or left out · builds: that runs were held back for, at most 20 · homes: the prefixes of queues in other slots in which runs have children, at
--        most 1,000, and '' before them
-- COST   10 us for a queue at rest; else 20 us + 1.5 us per job moved + 0.1-0.7 us per pending entry looked at, at most
--        6 x `limit`; 10 us per job that is due, or rises, at most `limit` / 2. Jobs that must be read are at most
--        1 MiB. Once a minute 30 us for a queue that has trends.
-- A worker is dead when its deadline has passed, and workers have swept the queue for one unbroken `timeout`: after a
-- server restart, every worker looks dead at once. lease: ms assumed for consumers that never registered. ageing: ms
-- after which a job goes to the level before its own, 0 never.

-- 1. If no job is leased, delayed, scheduled, held back or in a later level, no worker is late, and the last sweep was
-- just now, only store the time of this sweep. This needs no record: a repeated call finds the same state, or goes on.
lease = string.format('%.0f', whole(lease))
local now, rest = clock(), nil
local function at_rest()
  local first = redis.pcall('XPENDING', jobs, 'workers', '-', '+', 1)
  if first.err or first[1] or redis.call('EXISTS', leases, limited, delayed, ticks, deaths, asleep, steps, held, lines, links, pinned, afar, unpack(levels)) > 0 then return false end
  local kept = redis.call('HMGET', stats, 'pulse', 'listening', 'largest', 'rewind', 'levels', 'trends')
  if not kept[1] or kept[2] or kept[3] or kept[4] or kept[5] or trend_due(kept[6], now) then return false end
  local since, seen, quiet, before, least, run = string.match(kept[1], '^(%d+) (%d+) (%d+) (%d+) (%d+) (%x*)$')
  local gap = seen and now - tonumber(seen)
  if not gap or gap < 0 or gap > tonumber(least) / 2 or tonumber(least) > timeout then return false end
  local tokens = redis.pcall('XPENDING', wake, 'workers', '-', '+', 1)
  if tokens.err or tokens[1] then return false end
  if redis.call('ZRANGEBYSCORE', workers, '-inf', now, 'LIMIT', 0, 1)[1] then return false end
  rest = math.floor(least / 3) -- shorter than a gap (see death_deadline)
  local noted = table.concat({since, string.format('%.0f', now), quiet, before, least, run}, ' ')
  return type(redis.pcall('HSET', stats, 'pulse', noted)) == 'number' -- otherwise the server is full
end
if at_rest() then return {0, rest, 0, 0, 0, -1, -1, 1} end

-- 2. The group exists, and no reader waits for a forgotten token.
local q = {
  -- @queue
  worker = worker, levels = known_streams(stats, levels),
}
local listening = listeners(stats, events, 'reclaimed', 'promoted', 'added', 'leased', 'completed', 'retried', 'released', 'dead',
                   'cancelled', 'deleted', 'redriven', 'progress') -- all kinds
local rows, healed = heal_group(jobs, wake, function() return redis.pcall('XPENDING', jobs, 'workers', '-', '+', 1) end)
if rows.err then return rows end
redis.call('ZREM', workers, '') -- a full server permits it, and then all later writes
if healed == 1 then healing.forget_leases(q) end
clear_wake_tokens(wake) -- cancelled readers never come for their tokens

-- 3. Dead workers: their jobs go to the front.
local alive = tonumber(redis.call('ZSCORE', workers, worker) or 0) >= now
if alive then redis.call('HSETNX', registered, worker, string.format('%.0f %s', now, lease)) end
local late, when, long, seen = death_deadline(stats, now, timeout)
local sure = late and alive
local rewinding = correct_clock(stats, now, seen, workers, leases, limited)
local moved, declared_dead, more, budget = 0, 0, rewinding and 1 or 0, new_budget()
-- If this is uncertain, remove only a worker that has long been gone and holds no job: in a queue whose workers live
-- briefly, it is always uncertain.
local gone = string.format('(%.0f', sure and late or math.max(1, long - 10 * timeout))
local late_workers = redis.call('ZRANGEBYSCORE', workers, '-inf', gone, 'LIMIT', 0, 10)
for _, name in ipairs(late_workers) do
  if moved < limit and (sure or not redis.call('XPENDING', jobs, 'workers', '-', '+', 1, name)[1]) then
    if tonumber(redis.call('ZSCORE', workers, name)) > 0 then
      declared_dead = declared_dead + 1
      redis.call('ZADD', workers, 0, name) -- from now on its beats fail, even if the rest takes several calls
    end
    local number, _, ids_moved = take_over(q, name, limit - moved, budget, listening.reclaimed)
    moved = moved + number
    if listening.reclaimed then publish(events, 'reclaimed', ids_moved, name) end
  end
end
if sure and redis.call('ZRANGEBYSCORE', workers, '-inf', gone, 'LIMIT', 0, 1)[1] then more = 1 end

-- 4. Expired leases of workers that are alive.
local expired, again, ids_expired = 0, nil, {}
if moved < limit then expired, again, ids_expired = sweep(q, now, lease, limit - moved, budget, listening.reclaimed) end
if listening.reclaimed then publish(events, 'reclaimed', ids_expired) end
moved = moved + expired
-- Entries whose reader never came wake another reader.
local forgotten = #redis.call('XPENDING', jobs, 'workers', 'IDLE', 1000, '-', '+', 1, 'idle')
pass_stale_turns(q, stats, 20)
local suspected = forget_deaths(q)
forget_stale_runs(q, 10)
forget_stale_dues(q, 10)
report_stale_children(q, 10)
forget_stale_slots(q, 20)
tidy_lines(q, 20)

-- 5. Due jobs, and jobs that have waited for too long behind others.
-- Each of these jobs takes several times as long as a parked one.
local room = math.max(1, math.floor((limit - moved) / 2))
local promoted = promote(q, now, room, budget)
room = room - #promoted
if listening.promoted then publish(events, 'promoted', promoted) end
-- No job waits for ever behind others: after `ageing` it is parked a level before, or at the back of that.
for level = 1, ageing > 0 and q.levels.n or 0 do
  local stayed = room > 0 and redis.call('XPENDING', jobs, 'workers', 'IDLE', ageing, '-', '+', room, front_of(level)) or {}
  for i = 1, #stayed do stayed[i] = stayed[i][1] end
  hand_to(jobs, front_of(level - 1), stayed)
  local older_than = string.format('%.0f', math.max(0, now - ageing))
  local page, left = stretch(budget, q.levels[level], '-', older_than, room)
  raise_level(q, level, level - 1, page)
  if left or #stayed == room then more = 1 end
  room = math.max(0, room - #stayed - #page)
end
if budget.left <= 0 then more = 1 end

-- 6. Record the counts, once a minute; only a worker that knows all levels can count.
local recorded_at = redis.call('HGET', stats, 'trends')
if not q.levels.beyond and trend_due(recorded_at, now) then
  keep_trend(q, trends, recorded_at, now)
end

-- 7. Wake readers, and answer the time of the next call.
if listening.none then redis.call('HDEL', stats, 'listening') end
local there = redis.call('XLEN', jobs)
for level = 1, q.levels.n do there = there + redis.call('XLEN', q.levels[level]) end
if there == 0 and not q.levels.beyond then redis.call('HDEL', stats, 'largest') end
if redis.call('HEXISTS', stats, 'paused') == 0 then
  wake_many(wake, moved + forgotten + suspected + (seen > now and 1 or 0))
  if redis.call('EXISTS', lines) == 1 then wake_one(wake) end -- the reader that had the token for a line may have died
end
local function ahead(...)
  local least = -1
  for _, key in ipairs({...}) do
    local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]
    local left = first and first ~= 'inf' and math.max(0, tonumber(first) - now)
    if left and (least < 0 or left < least) then least = left end
  end
  return least
end
-- The next death is found when it comes.
local next_death = redis.call('ZRANGEBYSCORE', workers, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
if next_death then
  local left = math.max(tonumber(next_death), when) + 1 - now
  if left > 0 and left < 1000 then again = math.min(again or left, left) end
end
local wanted = builds.wanted(pinned, asleep)
local homes = redis.call('ZRANGE', afar, 0, 999)
if homes[1] then
  wanted[#wanted + 1] = ''
  for i = 1, #homes do wanted[#wanted + 1] = homes[i] end
end
if wanted[1] then table.insert(wanted, 1, 0) end
return answer({moved, again or -1, declared_dead, more, #promoted, ahead(delayed, limited, asleep), ahead(ticks), unpack(wanted)})
