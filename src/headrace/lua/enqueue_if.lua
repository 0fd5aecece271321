-- enqueue_if: add jobs under conditions: room in the queue, and whether a job whose id is taken is moved or replaced.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), stats (hash), taken (zset), gate (stream)
-- ARGV   call, most int, awaits int, together flag, items...
-- REPLY  {waiting, last, id, outcome, id, outcome, ...}: outcome 0 present, 1 added, 2 replaced, 3 moved, 4 dropped, 5
--        refused for lack of room, 6 not looked at, for lack of time: ask again, 7 new, but the shard is sealed: in
--        place of its id, the version of the table that sealed it · waiting and last: the number of waiting jobs, and
--        the last ID of the gate's stream, if a job was refused; else -1 and ''
-- COST   8 us per job, 15 us per job that is moved or replaced; 6 us + 0.1 us per worker where there is hardly room
-- most: jobs that may wait (waiting, parked, delayed), 0 for any number. awaits: ms for which the caller waits for
-- room: it blocks on the gate's stream after `last`, and asks again. together: all items are refused unless there is
-- room for all of them. Items: id or '', delay, conditions, number of fields, then the fields flat, `data` first.
-- Conditions of an id: 'name=ms' with spaces between. unique: the id stays taken for so long after its job was
-- completed (see complete, and the field headrace-unique). throttle: a later job is dropped for so long after the first
-- was added. debounce: a job that has not begun is delayed to so long from now, at most `max_wait` ms after its
-- enqueue; a new job is delayed for so long. replace=1: a job that has not begun gets the fields of this one, and its
-- delay. With `together`, a sealed shard answers the error SHARDS and that version, before any write. Bounded by the
-- client: at most 1,000 items, 1 MiB; of old jobs about 1 MiB is read.
local PRESENT, ADDED, REPLACED, MOVED, DROPPED, REFUSED, UNSEEN, SEALED = 0, 1, 2, 3, 4, 5, 6, 7
local CONDITIONS = {unique = true, throttle = true, debounce = true, max_wait = true, replace = true}

-- 1. Everything is checked before the first write.
local listening = listeners(stats, events, 'added')
require_streams(jobs, wake, gate)
require_hashes(ids, bodies, released, stats, turns, steps)
require_sorted_sets(delayed, leases, limited, flows, taken, behind)
local q = {
  -- @queue without asleep, cancels, held, settled, slots, stopped
  levels = level_streams(stats, levels), added = 0, enqueued = 0,
  cancels = listening.cancels and cancellations.present(cancels),
}
if together and listening.sealed then error('SHARDS ' .. listening.sealed, 0) end
local now, wanted, at = clock(), {}, items
while at <= #ARGV do
  local job = {id = ARGV[at], delay = ARGV[at + 1], fields = {}}
  due_at(job.delay, 0)
  for name, ms in string.gmatch(ARGV[at + 2], '([^ =]+)=([^ ]*)') do
    if not CONDITIONS[name] or job.id == '' then error('ARGUMENT ' .. name .. ': no such condition, or no id', 0) end
    job[name] = whole(ms, 1)
  end
  local size = 2 * whole(ARGV[at + 3] / 2, 1, 3900)
  for i = at + 4, at + 3 + size do job.fields[#job.fields + 1] = ARGV[i] end
  wanted[#wanted + 1], at = job, at + 4 + size
end
whole(at - #ARGV, 1, 1)
local marks = redis.call('EXISTS', taken) == 1
local function kept_out(job)
  if not marks or not (job.unique or job.throttle) then return false end
  local last = redis.call('ZSCORE', taken, job.id)
  return last and tonumber(last) > now
end

-- 2. Room: if the items belong together, for all of them that may be new.
local room, waiting, last = math.huge, -1, ''
if most > 0 then
  waiting = backlog(q, most - #wanted)
  room = math.max(0, most - waiting) -- more jobs may wait already
  local needed = #wanted
  if together and needed > room then
    for _, job in ipairs(wanted) do
      if job.id ~= '' and (redis.call('HEXISTS', ids, job.id) == 1 or kept_out(job)) then needed = needed - 1 end
    end
    if needed > room then room = -1 end
  end
end

-- 3. One job after the other.
local budget, first, refused, reply, ids_added = new_budget(), false, 0, {}, {}
local function change(job, entry)
  if not (job.debounce or job.replace) then return PRESENT end
  local there = unstarted_job(q, job.id, entry, budget)
  if there == false then return UNSEEN end
  if not there then return PRESENT end
  local due = there.due > now and there.due or 0
  if job.debounce then
    due = math.max(due, math.min(now + job.debounce, job.max_wait and there.first + job.max_wait or math.huge))
    if due <= now then due = 0 end
  elseif job.replace then
    due = due_at(job.delay, now)
  end
  local moved = due > math.max(now, there.due)
  if not moved and not job.replace then return PRESENT end
  local own, headers = there.own, there.headers
  if job.replace then own, headers = parse(job.fields) end
  first = requeue_job(q, there, own, headers, due) or first
  return job.replace and REPLACED or MOVED
end
for i, job in ipairs(wanted) do
  local id, outcome = job.id, nil
  if room < 0 or fitting(budget, 1) == 0 then
    outcome = room < 0 and REFUSED or UNSEEN
  elseif id ~= '' then
    if kept_out(job) then
      outcome = job.throttle and DROPPED or PRESENT
    else
      local entry = redis.call('HGET', ids, id)
      if entry then outcome = change(job, entry) end
    end
  end
  if not outcome and listening.sealed then id, outcome = listening.sealed, SEALED end
  if not outcome and room < 1 then outcome = REFUSED end
  if not outcome then
    local new, soonest
    id, new, soonest = add_job(q, now, id, job.debounce and string.format('+%.0f', job.debounce) or job.delay, job.fields)
    outcome, first = new, first or soonest
    if new == ADDED then
      room, ids_added[#ids_added + 1] = room - 1, id
      if job.throttle then
        keep_until(taken, {id}, now + job.throttle, now, 'GT')
        marks = true
      end
    end
  end
  if outcome == REFUSED then refused = refused + 1 end
  reply[2 * i - 1], reply[2 * i] = id, outcome
end
count_added(q)
if first then wake_one(wake) end
if listening.added then publish(events, 'added', ids_added) end

-- 4. Notify a waiting producer when there is room.
if refused == 0 then
  waiting = -1
else
  local newest = redis.call('XREVRANGE', gate, '+', '-', 'COUNT', 1)[1]
  last = newest and newest[1] or '0-0'
  if awaits > 0 then
    local until_when, enough = now + awaits, math.max(0, most - (together and #wanted or 1))
    local before, least = string.match(redis.call('HGET', stats, 'gate') or '', '^(%d+) (%d+)$')
    if before and tonumber(before) >= now and tonumber(before) <= now + 86400000 then
      until_when, enough = math.max(until_when, tonumber(before)), math.max(enough, tonumber(least))
    end
    redis.call('HSET', stats, 'gate', string.format('%.0f %.0f', until_when, enough))
  end
end
table.insert(reply, 1, waiting)
table.insert(reply, 2, last)
return answer(reply)
