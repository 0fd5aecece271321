-- lease_fair: as lease, for a queue with terms: hand out up to `limit` jobs by the shares of their values, within limits.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), stats (hash), gate (stream)
-- ARGV   call, worker, limit count, duration, lease, ttl int, max_attempts int, dead_limit int, woken, heir_of,
--        apart, batch int, one_value flag, buckets...
-- REPLY  as lease, then further, structure: further 1 = there are jobs that no call has looked at: see line_up ·
--        structure: of the queue's terms · known 5 = the queue has no terms: `lease` hands out its jobs
-- COST   60 us + 4 us per job at its first look, 8 us more for each value in the call; where jobs wait in lines 140 us,
--        and 11 us per job of one value, 30 us if each is of another
-- The rule and the keys are in docs/explanation/fairness.md. batch: how many jobs run as one batch, and share its time.
-- one_value 1: only jobs of one value. heir_of: its jobs go to the front of their lines. buckets: the one of 0 ms of
-- `lease`, if the queue is ordered; the rate limits are among the terms.
local known = recorded() -- the call was answered before, but its reply was lost
whole(lease)
local woke = redis.pcall('XPENDING', jobs, 'workers', '-', '+', 2, 'idle')
local tokens = woken ~= '0' and redis.pcall('XPENDING', wake, 'workers', '-', '+', 1, 'idle') or {}
if woken == '2' and not known and not (woke[1] or woke.err or tokens[1] or tokens.err) then return {1, -1, {}, {}, 0, -1} end
-- @fragments

-- 1. The short way: `fair` without limits, and nothing but new jobs and lines of jobs that were never leased. The picks are
-- those of the full way, without its other questions, which take more than half of a call for one job.
do
  -- The call asks for nothing else, no reader but this was woken, and no job is in another state.
  local short = not known and #levels == 0 and buckets > #ARGV and duration == '' and heir_of == '' and not one_value
    and not (woke.err or woke[2] or tokens.err or tokens[1])
    and redis.call('EXISTS', limited, released, deaths, asleep, stopped, resting) == 0
  -- The queue is plain, and its terms are `fair` alone; the jobs that are read fit into a call.
  local t
  local largest = 4096
  local known_largest = 4096
  if short then
    local state = redis.call('HMGET', stats, 'largest', 'levels', 'listening', 'paused', 'healed', 'gate', 'terms')
    local plain = state[7] and not (state[2] or state[3] or state[4] or state[5] or state[6])
    t = plain and agreed.read(terms)
    known_largest = tonumber(state[1] or 4096)
    largest = math.max(4096, known_largest)
    short = t and t.structure == state[7] and not (t.next or t.most or t.paused or t.resumed)
      and t.depth > 0 and t.number == t.depth and #t.slots + #t.rates == 0
      and (limit + 1) * largest <= 1048576
  end
  -- No job is due or parked, and the worker is registered.
  local first, exact, now, deadline
  if short then
    first = tonumber(redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2])
    exact = pace.moment()
    now = math.floor(exact)
    deadline = tonumber(redis.call('ZSCORE', workers, worker) or 0)
    short = not (first and first <= now) and deadline > 0 and (ttl == 0 or deadline >= now)
      and #redis.call('XPENDING', jobs, 'workers', '-', '+', 1, 'parked') == 0
      and #redis.call('XPENDING', jobs, 'workers', '-', '+', 1, 'parked:front') == 0
  end
  if short then
    require_hashes(shares, held)
    require_sorted_sets(busy)
    local has_lines = require_length(redis.pcall('ZCARD', lines), lines) > 0
    local has_ready = require_length(redis.pcall('ZCARD', ready), ready) > 0
    local awake = redis.call('XLEN', wake) > 0
    local texts = redis.call('LPOP', settled, 1000) or {} -- a full server permits this first write
    if ttl > 0 and deadline < now + ttl then redis.call('ZADD', workers, string.format('%.0f', now + ttl), worker) end
    local q = {
      jobs = jobs, wake = wake, leases = leases, stats = stats, terms = terms, shares = shares, lines = lines, ready = ready,
      stopped = stopped, resting = resting, held = held, slots = slots, busy = busy, settled = settled, worker = worker,
      reader = has_lines and 'parked:new' or worker, limits = {}, levels = {n = 0}, now = now, moment = exact, limit = limit,
      left = reading.JOBS, chunk = limit + 1, spent = 0, largest = largest,
      has_lines = has_lines, has_ready = has_ready, entries = {}, t = t, exact = now, mean_before = t.mean, further = false,
      passed = false, -- more than 32 fields: then it need not grow
    }
    picking.context(q, t, now)
    filing.ends(q, texts)
    -- The job that woke this reader, and new jobs, come into their lines.
    if woke[1] then
      local entry = woke[1][1]
      local body = redis.call('XRANGE', jobs, entry, entry)[1]
      if body then
        reading.put(q, body, 'idle', 0)
      else
        redis.call('XACK', jobs, 'workers', entry)
      end
    end
    reading.at_new(q, q.reader)
    -- The picks.
    local root = picking.node(q, '0', false)
    picking.admit(q)
    picking.pick(q, root, false)
    -- The writes.
    q.taken = filing.all(q, batch)
    for i = 1, #q.taken do q.entries[i] = q.taken[i][1] end
    if q.largest > known_largest then keep_max_job_size(stats, q.largest) end
    local left = root.n[1] or root.o[1] or (root.n.further or root.o.further) and redis.call('EXISTS', ready) == 1
    if not awake and (q.further or left) then wake_one(wake) end
    if #q.picks == 0 and not (q.further or q.has_lines) and redis.call('EXISTS', lines, held) == 0 then
      redis.call('UNLINK', shares, ready)
      holds.unshield(q)
    end
    local next_due = first and first - now or -1
    if #q.entries < limit and (q.further or q.passed) then next_due = 0 end
    local reply = {1, next_due, q.taken, {}, 0, now, 0, {}, q.further and 1 or 0, t.structure}
    return answer(reply, q.entries, true)
  end
end

-- @fragments

if known then -- the jobs of a lost reply are still in the pending list
  local again, died = leasing.again(known, jobs, worker, released, deaths, max_attempts)
  return {1, 0, again, {}, 0, clock(), 0, died or {}, 1} -- there may be more jobs
end

-- 2. Arguments and terms; whether this worker gets any job.
if duration ~= '' then whole(duration) end
require_hashes(terms, shares, held)
require_sorted_sets(lines, ready, stopped, resting, slots, busy)
require_length(redis.pcall('LLEN', settled), settled)
local q = {
  -- @queue
  worker = worker, ttl = ttl, lease = lease, woken = woken, duration = duration, max_attempts = max_attempts,
  dead_limit = dead_limit, now = clock(),
  levels = (ttl > 0 and level_streams or known_streams)(stats, levels), taken = {}, entries = {}, dead_ids = {}, why = {},
  letters = {}, over_dead = {}, room = runs.room(), spent = 0,
}
q.fair, q.chunk, q.left, q.others = true, 16, reading.JOBS, {}
q.limits = rate_limits(q, buckets)
if q.order then read_in_order(reading) end
local t = agreed.read(terms)
if not t then
  redis.call('HDEL', stats, 'terms')
  return {5, -1, {}, {}, 0, q.now, 0, {}, 0, ''}
end
agreed.rates(q, t)
q.nothing = leasing.begin(q)
if q.nothing then return q.nothing end
if q.state[5] ~= t.structure then redis.call('HSET', stats, 'terms', t.structure) end
if t.next then
  agreed.change(q)
  return {1, 0, {}, {}, q.healed, q.now}
end
q.moment = pace.moment()
picking.context(q, t, #q.limits > 0 and q.moment or q.now)
q.mean_before, q.healing = t.mean, q.state[3]

-- 3. How many jobs: by the limits of the whole queue.
local wanted, hold, most = limit, 0, 0
limit, hold = pace.room(rates, q.limits, q.exact, limit)
if limit == 0 then
  pace.write_scores(rates) -- corrected if the clock went back
  return {2, hold, {}, {}, q.healed, q.now}
end
most = t.most and math.max(0, t.most - redis.call('HLEN', held)) or limit
q.spent = q.promoted or 0
q.limit = math.min(limit, most)
q.fit = math.max(1, math.floor(1048576 / q.largest)) -- jobs of lines are read when they are picked
local short = q.fit < q.limit
q.limit = math.min(q.limit, q.fit)
q.has_lines = redis.call('EXISTS', lines) == 1

-- 4. Leases that ended; the jobs of a predecessor; the first look.
q.freed = filing.ends(q, redis.call('LPOP', settled, 1000) or {})
local budget = new_budget(262144)
if heir_of ~= '' then leasing.inherit(q, heir_of, 0, budget) end
q.awake = redis.call('ZRANGEBYSCORE', asleep, '-inf', q.now, 'LIMIT', 0, 100)
if q.healing then healing.readopt(q, stats, q.healing, 100, budget) end
q.spent = q.spent + 262144 - budget.left
q.reader = q.has_lines and 'parked:new' or worker -- most of them go there: jobs in lines come first
looking.at_stopped(q, q.freed)
looking.at_all(q, q.reader)

-- 5. A suspect, alone; otherwise the picks, level by level.
function q.suspect(idle)
  local row = suspects.next(q, idle, t.paused and function(entry) -- none of a paused value
    local body = redis.call('XRANGE', jobs, entry, entry)[1]
    if not body then return true end
    local key = agreed.line(t, 0, (agreed.values(t, body[2])))
    return not picking.halted(q, key, select(2, agreed.split(key)))
  end)
  local body = row and redis.call('XRANGE', jobs, row[1], row[1])[1]
  if row and not body then redis.call('XACK', jobs, 'workers', row[1]) end
  if not body or q.limit == 0 then return end
  local values, cost = agreed.values(t, body[2])
  local line = picking.line(q, agreed.line(t, level_of(body[2], q.levels.n), values), values)
  picking.admit(q)
  local stop, may_run = line.stop, picking.may_run(q, line)
  if line.slots then line.stop, line.rest = stop, false end
  if not may_run then return end
  if cost > 0 then q.costs[row[1]] = cost end
  body.owner, body.count = SUSPECTS, row[4]
  picking.charge(q, line, body, row[1])
  q.apart = true
end
q.suspects = q.watched and (apart == '1' or apart == '2')
if q.suspects then q.suspect(apart == '2' and 0 or lease) end
repeat -- again, if a level has given a slot to a line of one before
  for level = 0, q.apart and -1 or q.levels.n do
    if level > 0 and #q.picks < q.limit and not q.further then looking.at_level(q, level, q.reader) end
    local root = picking.node(q, tostring(level), false)
    picking.admit(q, string.byte(root.key))
    if q.limit > #q.picks and not (one_value and q.picks[1]) then picking.pick(q, root, one_value) end
  end
until q.apart or not q.coming[1] or #q.picks >= q.limit or one_value and q.picks[1]
if q.suspects and #q.picks == 0 then q.suspect(0) end
picking.admit(q)

-- 6. The writes.
if q.order then
  turning.write(q)
  hand_to(q.jobs, 'behind', q.others, 0)
end
q.rows, q.carry = filing.all(q, batch), redis.call('EXISTS', released) == 1
if q.largest > tonumber(q.state[2] or 4096) then keep_max_job_size(stats, q.largest) end
for _, row in ipairs(q.rows) do
  if row[3] == 1 and not (q.carry or q.watched) then
    q.entries[#q.entries + 1], q.taken[#q.taken + 1] = row[1], row
  else
    leasing.hand_out(q, row[1], row[2], row[3])
  end
end

-- 7. Other readers, if jobs are left that may run; and the remains of an empty queue.
local root = q.nodes['0']
local left = q.further or redis.call('EXISTS', ready) == 1
if root and root.value and q.leafy then left = left or q.has_lines and (not root.line or not root.line.came or root.line.alive) end
local full = t.most and #q.picks >= most
if full and left then redis.call('ZADD', stopped, 0, '*') elseif q.has_stopped then redis.call('ZREM', stopped, '*') end
if left and not full then wake_one(wake) end
if #q.picks == 0 and not q.further and not q.has_lines and redis.call('EXISTS', lines, held) == 0 then
  redis.call('UNLINK', shares, ready, stopped, resting)
  holds.unshield(q)
end
local again = short and left or q.apart or #q.entries < q.limit and (q.further or q.passed) or #q.dead_ids > 0
limit = math.min(limit, wanted)
return answer(leasing.finish(q, {}, limit, wanted, again, {
  q.further and 1 or 0, t.structure,
}))
