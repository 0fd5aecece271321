-- lease_fair: as lease, for a queue with terms: hand out up to `limit` jobs by the shares of their values, within limits.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), workers (zset), registered (hash), leases (zset),
--        released (hash), delayed (zset), bodies (hash), dead (stream), stats (hash), limited (zset), gate (stream),
--        control (channel), terms (hash), shares (hash), lines (zset), ready (zset), resting (zset), busy (zset)
-- ARGV   call, worker, limit count, duration, lease, ttl int, max_attempts int, dead_limit int, woken, heir_of,
--        apart, batch int, one_value flag, buckets...
-- REPLY  as lease, then further, structure: further 1 = there are jobs that no call has looked at: see line_up ·
--        structure: of the queue's terms · known 5 = the queue has no terms: `lease` hands out its jobs
-- COST   60 us + 4 us per job at its first look, 8 us more for each value in the call; where jobs wait in lines 140 us,
--        and 11 us per job of one value, 30 us if each is of another
-- The rule and the keys are in docs/explanation/fairness.md. batch: how many jobs run as one batch, and share its time.
-- one_value 1: only jobs of one value. heir_of: its jobs go to the front of their lines. buckets: the one of 0 ms of
-- `lease`, if the queue is ordered; the rate limits are among the terms.
-- @feature history
-- @feature ordered
-- @feature limits
-- @feature flows
-- @include clock
-- @include record
local known = recorded() -- the call was answered before, but its reply was lost
whole(lease)
local rung = redis.pcall('XPENDING', jobs, 'workers', '-', '+', 2, 'bell')
local tokens = woken ~= '0' and redis.pcall('XPENDING', wake, 'workers', '-', '+', 1, 'bell') or {}
if woken == '2' and not known and not (rung[1] or rung.err or tokens[1] or tokens.err) then return {1, -1, {}, {}, 0, -1} end

-- 1. The short way: `fair` with one header and no limits, no line, and nothing but new jobs. They are all leased, so no
-- order is planned: what each value had is the same in any order. Nearly every call of a queue without a backlog comes
-- here; all else is for the other ways, and the full way gets the rows that were read.
local rows, lined
do
  local plain = not known and #levels == 0 and buckets > #ARGV and duration == '' and heir_of == '' and not one_value
    and not (rung.err or rung[2] or tokens.err or tokens[1])
  local there = plain and redis.call('EXISTS', limited, released, deaths, asleep, lines, stopped, resting)
  local in_lines = there == 1 and redis.call('EXISTS', lines) == 1
  plain = there == 0 or in_lines and not rung[1]
  local state = plain and redis.call('HMGET', stats, 'largest', 'levels', 'heard', 'paused', 'healed', 'gate', 'terms')
  local kept = state and redis.call('HMGET', terms, 'structure', 'packed', 'mean', 'weighted', 'again', 'halved', 'next', 'sweep')
  local first, now, deadline
  plain = state and state[7] and state[7] == kept[1]
    and not (state[2] or state[3] or state[4] or state[5] or state[6] or kept[7] or kept[8])
    and (limit + 1) * math.max(4096, tonumber(state[1] or 0)) <= 4194304
  local path, keys, limits, pace
  if plain then
    path, keys, limits, pace = unpack(cmsgpack.unpack(kept[2]))
    first, now = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2], clock()
    first, deadline = first and tonumber(first), tonumber(redis.call('ZSCORE', workers, worker) or 0)
    plain = (#path == 1 or in_lines) and #path > 0 and #keys + #limits + #pace == 0 and not (first and first <= now) and deadline > 0
      and (ttl == 0 or deadline >= now) and (now - tonumber(kept[6] or 0)) < 60000
      and #redis.call('XPENDING', jobs, 'workers', '-', '+', 1, 'parked') == 0
  end
  if plain and in_lines then
    plain = false
    if #redis.call('XPENDING', jobs, 'workers', '-', '+', 1, 'parked:front') == 0 then lined = {state[1], kept, first, now, deadline} end
  end
  if plain then
    rows = rung[1] and redis.call('XCLAIM', jobs, 'workers', worker, 0, rung[1][1], 'RETRYCOUNT', 1) or {}
    if rung[1] and not rows[1] then redis.call('XACK', jobs, 'workers', rung[1][1]) end -- removed by XDEL by hand
    local read = redis.call('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', limit + 1 - #rows, 'STREAMS', jobs, '>')
    for _, row in ipairs(read and read[1][2] or {}) do rows[#rows + 1] = row end
    plain = #rows > 0 and #rows <= limit
  end
  if plain then
    if ttl > 0 and deadline < now + ttl then redis.call('ZADD', workers, string.format('%.0f', now + ttl), worker) end
    local header, known, all, spent = path[1], {}, {}, 0
    local function value_at(key)
      local it = {key = key, at = 0, was = false, mean = 0, running = 0, p50 = 0, p95 = 0, weight = 1, news = 0, ran = 0, text = false}
      known[key], all[#all + 1] = it, it
      return it
    end
    local of, costs, entries, largest, taken = {}, {}, {}, tonumber(state[1] or 4096), {}
    for i = 1, #rows do
      local entry, fields = rows[i][1], rows[i][2]
      local bytes, value = #fields[2], nil
      for j = 3, #fields, 2 do
        local name, text = fields[j], fields[j + 1]
        bytes = bytes + #name + #text
        if name == header then
          value = text
        elseif name == 'headrace-cost' then
          local cost = tonumber(string.match(text, '^[%d.]+e?[-+]?%d*$') or 0) or 0
          costs[i] = cost > 0 and math.min(math.max(cost, 0.001), 1000000) or nil
        end
      end
      if fields[1] == header then value = value or fields[2] end
      spent = spent + bytes
      if bytes > largest then largest = bytes end
      if value and #value > 500 then value = string.sub(value, 1, 500) end
      local key = value and '0' .. #value .. ':' .. value or '0-'
      of[i] = known[key] or value_at(key)
      of[i].news = of[i].news + 1
      entries[i], taken[i] = entry, {entry, fields, 1, 0}
    end
    -- The ends since the last call.
    local texts, when, text, ended, since, charge, number, costed = redis.call('LPOP', settled, 1000) or {}, 0, nil, nil, 0, 0, 1, ''
    local ends = {}
    for i = 1, #texts do
      if string.byte(texts[i]) == 64 then
        when = tonumber(string.sub(texts[i], 2))
      else
        if texts[i] ~= text then
          text = texts[i]
          local bytes, at
          since, costed, charge, number, bytes, at = string.match(text, '^(%S+) (=?)(%S+) (%d+) (%d+):()')
          since, charge, number = tonumber(since), tonumber(charge), tonumber(number)
          local line = string.sub(text, at, at + bytes - 1)
          ended = known[line] or value_at(line)
        end
        ends[#ends + 1] = {ended, math.max(0, 1000 * (when - since) / number), charge, costed}
      end
    end
    if #texts == 1000 then redis.call('LPUSH', settled, string.format('@%.3f', when)) end
    local names, weights = {'v0', 'c'}, {}
    for i = 1, #all do names[i + 2], weights[i] = 'a' .. all[i].key, 'w' .. string.sub(all[i].key, 2) end
    local stored = redis.call('HMGET', shares, unpack(names))
    weights = kept[4] and redis.call('HMGET', terms, unpack(weights)) or {}
    local virtual, mean = tonumber(stored[1] or 0), tonumber(kept[3] or 1000)
    local mean_before, last = mean, virtual
    for i = 1, #all do
      local it = all[i]
      it.weight = tonumber(weights[i] or 1)
      if stored[i + 2] then
        local at, its_mean, running, _, p50, p95 = string.match(stored[i + 2], '^(%d+) (%d+) (%d+) (%d) (%d+) (%d+)$')
        it.at, it.mean, it.running, it.p50, it.p95, it.was = tonumber(at), tonumber(its_mean), tonumber(running), tonumber(p50), tonumber(p95), true
      end
    end
    for i = 1, #ends do
      local it, ran = ends[i][1], ends[i][2]
      if ends[i][4] == '' then
        local before = it.mean > 0 and it.mean or mean
        it.mean, mean = math.max(1, before + (ran - before) / 8), math.max(1, mean + (ran - mean) / 8)
        it.at = math.max(0, it.at + (ran - ends[i][3]) / it.weight)
      end
      it.running, it.ran = math.max(0, it.running - 1), it.ran + ran / 1000
    end
    local time = redis.call('TIME')
    local stamp, share = string.format('%.3f ', time[1] * 1000 + time[2] / 1000), math.min(batch, #rows)
    local held_texts, starts = {}, {}
    for i = 1, #rows do
      local it, cost = of[i], costs[i]
      local its_charge = math.max(1, math.floor((cost and cost * mean or it.mean > 0 and it.mean or mean) + 0.5))
      local its_text = not cost and it.text
      if not its_text then
        its_text = string.format('%s%s%.0f %d %d:', stamp, cost and '=' or '', its_charge, share, #it.key) .. it.key
        if not cost then it.text = its_text end
      end
      if it.news > 0 then -- its first job: it begins at the virtual time, unless its next start is later
        it.news, it.at = 0, math.max(it.at, virtual)
        local waited = math.max(1, now - tonumber(string.match(entries[i], '^%d+')))
        it.p50 = it.p50 == 0 and waited or math.max(1, it.p50 * (waited > it.p50 and 1.05 or 1 / 1.05))
        it.p95 = it.p95 == 0 and waited or math.max(1, it.p95 * (waited > it.p95 and 1.1 or 1 / 1.005))
      end
      held_texts[2 * i - 1], held_texts[2 * i], starts[i] = entries[i], its_text, it.at
      last = math.max(last, it.at)
      it.at, it.running = math.min(9e15, it.at + its_charge / it.weight), it.running + 1
    end
    redis.call('HSET', held, unpack(held_texts))
    local written, gone, created = {}, {}, 0
    for i = 1, #all do
      local it = all[i]
      if it.running > 0 or it.at > last then
        if not it.was then created = created + 1 end
        written[#written + 1] = 'a' .. it.key
        written[#written + 1] = string.format('%.0f %.0f %d 0 %.0f %.0f', it.at, it.mean, it.running, it.p50, it.p95)
      elseif it.was then
        gone[#gone + 1] = 'a' .. it.key
      end
      if it.ran > 0 then redis.call('ZINCRBY', busy, string.format('%.3f', it.ran), string.sub(it.key, 2)) end
    end
    if #gone > 0 then redis.call('HDEL', shares, unpack(gone)) end
    written[#written + 1], written[#written + 2] = 'v0', string.format('%.0f', last)
    if created > 0 then
      local from, came = string.match(stored[2] or '0 0', '^(%d+) (%d+)$')
      written[#written + 1], written[#written + 2] = 'c', from .. ' ' .. came + created
      if came + created >= 64 then redis.call('HSET', terms, 'sweep', 1) end
    end
    redis.call('HSET', shares, unpack(written))
    if mean ~= mean_before then redis.call('HSET', terms, 'mean', string.format('%.0f', mean)) end
    if largest > tonumber(state[1] or 4096) then redis.call('HSET', stats, 'largest', largest) end
    if #all > 1 then -- in the order in which they would have been picked
      local order = {}
      for i = 1, #rows do order[i] = i end
      table.sort(order, function(x, y) return starts[x] < starts[y] or starts[x] == starts[y] and (of[x].key < of[y].key or of[x] == of[y] and x < y) end)
      local some, others = {}, {}
      for i = 1, #order do some[i], others[i] = taken[order[i]], entries[order[i]] end
      taken, entries = some, others
    end
    return answer({1, first and first - now or -1, taken, {}, 0, now, 0, {}, 0, kept[1]}, entries, true)
  end
end

-- 2. A little longer: `fair` without limits, and nothing but new jobs and lines of jobs that were never leased.
-- @include agreed
-- @include filing
-- @include held
-- @include max_job_size
-- @include picking
-- @include reading
-- @include wake_one
if lined and (limit + 1) * math.max(4096, tonumber(lined[1] or 0)) <= 1048576 then
  local kept, first, now = lined[2], lined[3], lined[4]
  require_hashes(shares, held)
  require_sorted_sets(lines, ready, slots, busy)
  require_length(redis.pcall('LLEN', settled), settled)
  redis.call('XACK', wake, 'workers', '0-0') -- a full server permits this first write
  if ttl > 0 and lined[5] < now + ttl then redis.call('ZADD', workers, string.format('%.0f', now + ttl), worker) end
  local q = {
    jobs = jobs, wake = wake, leases = leases, stats = stats, terms = terms, shares = shares, lines = lines, ready = ready,
    stopped = stopped, resting = resting, held = held, slots = slots, busy = busy, settled = settled, worker = worker,
    reader = 'parked:new', limits = {}, levels = {n = 0}, now = now, moment = moment(), limit = limit, portion = limit + 1,
    left = reading.JOBS, chunk = 16, spent = 0, largest = math.max(4096, tonumber(lined[1] or 0)), has_lines = true,
    entries = {},
  }
  local t = agreed.of(kept)
  picking.context(q, t, now)
  q.mean_before = t.mean
  filing.ends(q)
  reading.at_new(q, q.reader)
  local root = picking.node(q, '0', false)
  picking.fetch(q, root)
  picking.admit(q)
  picking.pick(q, root, false)
  picking.admit(q)
  q.taken = filing.all(q, batch)
  for i = 1, #q.taken do q.entries[i] = q.taken[i][1] end
  if q.largest > tonumber(lined[1] or 4096) then keep_max_job_size(stats, q.largest) end
  if q.further or redis.call('EXISTS', ready) == 1 then wake_one(wake) end
  local again = #q.entries < limit and (q.further or q.passed)
  return answer({
    1, again and 0 or first and first - now or -1, q.taken, {}, 0, now, 0, {}, q.further and 1 or 0, t.structure,
  }, q.entries, true)
end

-- @include events
-- @include lease_limits
-- @include leasing
-- @include levels
-- @include looking
-- @include page
-- @include rates
-- @include read_in_order
-- @include requeue_front
-- @include require_types
-- @include runs
-- @include suspects
-- @include take_over
-- @include take_turns
-- @include wake_many

if known then -- the jobs of a lost reply are still in the pending list
  local again, told = leasing.again(known, jobs, worker, released, deaths, max_attempts)
  return {1, 0, again, {}, 0, clock(), 0, told or {}, 1} -- there may be more jobs
end

-- 3. Arguments and terms; whether this worker gets any job.
if duration ~= '' then whole(duration) end
require_hashes(terms, shares, held)
require_sorted_sets(lines, ready, stopped, resting, slots, busy)
require_length(redis.pcall('LLEN', settled), settled)
local q = {
  jobs = jobs, wake = wake, ids = ids, leases = leases, released = released, delayed = delayed, bodies = bodies,
  stats = stats, limited = limited, flows = flows, turns = turns, behind = behind, deaths = deaths, workers = workers,
  registered = registered, ends = ends, ended = ended, events = events, steps = steps, control = control, dead = dead,
  gate = gate, asleep = asleep, rates = rates, worker = worker, ttl = ttl, lease = lease, woken = woken,
  duration = duration, max_attempts = max_attempts, dead_limit = dead_limit, now = clock(),
  levels = (ttl > 0 and level_streams or known_streams)(stats, levels), taken = {}, entries = {}, buried = {}, why = {},
  attempts = {died = {}, jobs = {}, runs = {}, deliveries = {}, room = runs.room()}, spent = 0,
}
q.terms, q.shares, q.lines, q.ready, q.stopped, q.resting = terms, shares, lines, ready, stopped, resting
q.held, q.slots, q.busy, q.settled, q.rates, q.asleep = held, slots, busy, settled, rates, asleep
q.worker, q.fair, q.chunk, q.left, q.others = worker, true, 16, reading.JOBS, {}
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
q.moment = moment()
picking.context(q, t, #q.limits > 0 and q.moment or q.now)
q.mean_before, q.healing = t.mean, q.state[3]

-- 4. How many jobs: by the limits of the whole queue.
local wanted, hold, most = limit, 0, 0
limit, hold = room(rates, q.limits, q.exact, limit)
if limit == 0 then
  write_scores(rates) -- corrected if the clock went back
  return {2, hold, {}, {}, q.healed, q.now}
end
most = t.most and math.max(0, t.most - redis.call('HLEN', held)) or limit
q.spent = q.promoted or 0
q.limit = math.min(limit, most)
q.fit = math.max(1, math.floor(1048576 / q.largest)) -- jobs of lines are read when they are picked
local short = q.fit < q.limit
q.limit = math.min(q.limit, q.fit)
q.portion, q.has_lines = q.limit + 1, redis.call('EXISTS', lines) == 1

-- 5. Leases that ended; the jobs of a predecessor; the first look.
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
q.reader = q.has_lines and 'parked:new' or worker -- most of them go there: jobs in lines come first
looking.at_all(q, q.reader, rows)
looking.at_stopped(q, q.freed)

-- 6. A suspect, alone; otherwise the picks, level by level.
function q.suspect(idle)
  local row = suspects.next(q, idle)
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
q.suspects = q.watched and (apart == '1' or apart == '2')
if q.suspects then q.suspect(apart == '2' and 0 or lease) end
for level = 0, q.apart and -1 or q.levels.n do
  if level > 0 and #q.picks < q.limit and not q.further then looking.at_level(q, level, q.reader) end
  local root = picking.node(q, tostring(level), false)
  root.value = t.depth == 0
  if q.limit > 0 and not (root.value and q.leafy) then picking.fetch(q, root) end
  picking.admit(q)
  if q.limit > #q.picks then picking.pick(q, root, one_value) end
end
if q.suspects and #q.picks == 0 then q.suspect(0) end
picking.admit(q)

-- 7. The writes.
if q.order then
  write_turns(q)
  put_behind(q, q.others, 0)
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

-- 8. Other readers, if jobs are left that may run; and the remains of an empty queue.
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
local again = short and left or q.apart or #q.entries < q.limit and (q.further or q.passed) or #q.buried > 0
limit = math.min(limit, wanted)
return answer(leasing.finish(q, {}, q.limits, q.exact, limit, wanted, again, {
  q.further and 1 or 0, t.structure,
}))
