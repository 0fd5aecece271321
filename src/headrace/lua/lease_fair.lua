-- lease_fair: as lease, for a queue with terms: hand out up to `limit` jobs by the shares of their values, within limits.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), workers (zset), registered (hash), leases (zset),
--        released (hash), delayed (zset), bodies (hash), dead (stream), stats (hash), limited (zset), rates (zset),
--        events (channel), flows (zset), ends (hash), ended (zset), gate (stream), control (channel), turns (hash),
--        behind (zset), deaths (hash), asleep (zset), steps (hash), terms (hash), shares (hash), lines (zset),
--        ready (zset), stopped (zset), resting (zset), held (hash), slots (zset), busy (zset), settled (list), levels...
-- ARGV   call, worker, limit count, duration, lease, ttl int, max_attempts int, dead_limit int, woken, heir_of,
--        structure, offered, batch int, one_value flag, buckets...
-- REPLY  as lease, then further, structure: further 1 = there are jobs that no call has looked at: see line_up ·
--        structure: of the queue's terms, '' if it had none: their weights are to be declared
-- COST   60 us + 4 us per job at its first look, 6 us more for each value in the call; from a line 5-15 us per job
-- The rule and the keys are in docs/explanation/fairness.md. structure and offered: the caller's terms, which become the
-- queue's if it has none (see declare_terms); else the queue's count. batch: how many jobs run as one batch, and share
-- its time. one_value 1: only jobs of one value. heir_of: its jobs go to the front of their lines.
-- @include clock
-- @include record
local known = recorded()
if known then -- the reply was lost
  local again = {}
  local told = type(known[#known]) == 'table' and table.remove(known) or nil -- the jobs that died
  for _, entry in ipairs(known) do
    local row = redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1, worker)[1] -- none if the group is gone
    local body = row and redis.call('XRANGE', jobs, entry, entry)[1]
    if body then again[#again + 1] = {entry, body[2], row[4], (tonumber(redis.call('HGET', released, entry) or 0) or 0)} end
  end
  return {1, 0, again, {}, 0, clock(), 0, told or {}, 1, structure} -- there may be more jobs
end
whole(lease)
if woken == '2' then
  local rung = redis.pcall('XPENDING', jobs, 'workers', '-', '+', 1, 'bell')
  local tokens = redis.pcall('XPENDING', wake, 'workers', '-', '+', 1, 'bell')
  if not (rung[1] or tokens[1] or rung.err or tokens.err) then return {1, -1, {}, {}, 0, -1} end
end

-- @include agreed
-- @include filing
-- @include held
-- @include lease_limits
-- @include leasing
-- @include levels
-- @include looking
-- @include max_job_size
-- @include page
-- @include picking
-- @include publish
-- @include rates
-- @include requeue_front
-- @include require_types
-- @include suspect_turns
-- @include take_over
-- @include take_turns
-- @include wake_many
-- @include wake_one

-- 1. Arguments and terms; whether this worker gets any job.
if duration ~= '' then whole(duration) end
require_hashes(terms, shares, held)
require_sorted_sets(lines, ready, stopped, resting, slots, busy)
require_length(redis.pcall('LLEN', settled), settled)
local q = leasing.context()
q.terms, q.shares, q.lines, q.ready, q.stopped, q.resting = terms, shares, lines, ready, stopped, resting
q.held, q.slots, q.busy, q.settled, q.rates, q.asleep = held, slots, busy, settled, rates, asleep
q.worker, q.fair, q.chunk, q.left, q.others = worker, true, 16, looking.JOBS, {}
q.limits = rate_limits(q, buckets)
local t = agreed.read(terms)
if not t then
  local packed = agreed.packed(offered)
  redis.call('XACK', wake, 'workers', '0-0') -- a full server permits this first write
  agreed.write(terms, stats, structure, packed)
  t, q.anew = agreed.read(terms), true
end
for _, rate in ipairs(q.limits) do
  if rate.name ~= '' and not t.want[rate.name] then error('FAIR ' .. t.structure, 0) end
end
q.nothing = leasing.begin(q)
if q.nothing then return q.nothing end
if q.state[5] ~= t.structure then redis.call('HSET', stats, 'terms', t.structure) end
if t.next then
  agreed.change(q)
  return {1, 0, {}, {}, q.healed, q.now}
end
q.moment = moment()
picking.context(q, t, #q.limits > 0 and q.moment or q.now)
q.mean_before, q.healing = t.mean, q.state[3]

-- 2. How many jobs: by the limits of the whole queue.
local wanted, hold, most = limit, 0, 0
limit, hold = room(rates, q.limits, q.exact, limit)
if limit == 0 then
  write_scores(rates) -- corrected if the clock went back
  return {2, hold, {}, {}, q.healed, q.now}
end
most = t.most and math.max(0, t.most - redis.call('HLEN', held)) or limit
q.spent = q.promoted or 0
q.limit = math.min(limit, most)
local fit = math.max(1, math.floor(1048576 / q.largest)) -- jobs of lines are read when they are picked
local short = fit < q.limit
q.limit = math.min(q.limit, fit)
q.portion, q.has_lines = q.limit + 1, redis.call('EXISTS', lines) == 1

-- 3. What ended; the jobs of a predecessor; the first look.
q.freed = filing.ends(q)
local budget = new_budget(262144)
if heir_of ~= '' then
  redis.call('ZADD', workers, 'XX', 0, heir_of) -- if it is alive, its next beat fails
  local number = (q.heard.reclaimed or q.levels.n > 0) and 100 or 400 -- jobs that must be read take longer
  local moved, _, ids_back = take_over(q, heir_of, number, budget, q.heard.reclaimed)
  if q.heard.reclaimed then publish(events, 'reclaimed', ids_back, heir_of) end
  wake_many(wake, moved)
  q.watched = redis.call('EXISTS', deaths) == 1
end
q.awake = redis.call('ZRANGEBYSCORE', asleep, '-inf', q.now, 'LIMIT', 0, 100)
if q.healing then readopt(q, stats, q.healing, 100, budget) end
q.spent = q.spent + 262144 - budget.left
looking.at_all(q, worker)
looking.at_stopped(q, q.freed)

-- 4. A suspect, alone, if it is its turn; otherwise the picks, level by level.
function q.suspect()
  local row = redis.call('XPENDING', jobs, 'workers', '-', '+', 1, SUSPECTS)[1]
  local body = row and redis.call('XRANGE', jobs, row[1], row[1])[1]
  if row and not body then redis.call('XACK', jobs, 'workers', row[1]) end
  if not body or q.limit == 0 then return end
  local values, cost = agreed.values(t, body[2])
  local line = picking.line(q, agreed.line(t, level_of(body[2], q.levels.n), values), values)
  picking.admit(q)
  if not picking.may_run(q, line) then return end
  if cost > 0 then q.costs[row[1]] = cost end
  picking.join(line.value)
  body.owner, body.count = SUSPECTS, row[4]
  picking.charge(q, line, body, row[1])
  q.apart = true
end
q.waiting = q.watched and not q.holds and redis.call('XPENDING', jobs, 'workers', '-', '+', 1, SUSPECTS)[1]
q.others_first = q.waiting and suspects.others_first(q)
if q.waiting and not q.others_first then q.suspect() end
for level = 0, q.apart and -1 or q.levels.n do
  if level > 0 and #q.picks < q.limit and not q.further then looking.at_level(q, level, worker) end
  local root = picking.node(q, tostring(level), false)
  root.value = t.depth == 0
  if q.limit > 0 and not (root.value and q.leafy) then picking.fetch(q, root) end
  picking.admit(q)
  if q.limit > #q.picks then picking.pick(q, root, one_value) end
end
if q.others_first and #q.picks == 0 then q.suspect() end
picking.admit(q)

-- 5. The writes.
if q.order then
  write_turns(q)
  put_behind(q, q.others, 0)
end
q.rows, q.carry = filing.all(q, batch), redis.call('EXISTS', released) == 1
if q.largest > tonumber(q.state[2] or 4096) then keep_max_job_size(stats, q.largest) end
for _, row in ipairs(q.rows) do
  if row[3] == 1 and not (q.carry or q.watched) then
    q.entries[#q.entries + 1], q.taken[#q.taken + 1] = row[1], {row[1], row[2], 1, 0}
  else
    leasing.hand_out(q, row[1], row[2], row[3])
  end
end
if q.apart and #q.entries > 0 then
  q.alone = suspects.handed_out(q, worker, tonumber(lease))
elseif q.others_first and #q.entries > 0 then
  q.alone = suspects.others_handed_out(q, workers, worker, q.now, tonumber(lease))
end

-- 6. Other readers, if jobs are left that may run; and what is left of a queue that is empty.
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
local again = short and left or #q.entries < q.limit and (q.further or q.passed) and not q.apart or #q.buried > 0
limit = math.min(limit, wanted)
return answer(leasing.finish(q, {}, q.limits, q.exact, limit, wanted, again, {
  q.further and 1 or 0, q.anew and '' or t.structure,
}))
