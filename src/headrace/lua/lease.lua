-- lease: hand out up to `limit` jobs, level by level: parked jobs, then jobs that woke a reader, then new jobs.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), stats (hash), gate (stream)
-- ARGV   call, worker, limit count, duration, lease, ttl int, max_attempts int, dead_limit int, woken, heir_of,
--        apart, buckets...
-- REPLY  {known, next_due, taken, fresh, healed, now, levels, died, further, structure}: known 0 = this worker was
--        declared dead, and got nothing · 2 = no more jobs are handed out: the queue is paused, a rate limit admits
--        none for next_due ms, or a caller without a heartbeat holds a suspect · 5 = nothing was done: the queue has
--        the terms `structure`, so `lease_fair` hands out its jobs · next_due ms until a delayed or limited job is due
--        or -1, 0 = ask again at once · taken {entry, fields, count, releases}..., followed by the deaths of its
--        holders if the job is a suspect, which comes alone · fresh entries and payloads in turn: first deliveries
--        (count 1) of jobs that have only a payload; they come after the jobs of taken · healed 1 = the group was
--        missing and was created · now ms of the server's clock, or -1 if the script did not read it · number of
--        levels, if the worker knows fewer:
--        jobs of the other levels were passed over; otherwise 0, or left out · died {id, attempts, reason, kind}... of
--        jobs that are dead letters now, if any
-- COST   10 us + 2 us per job; with limits, levels, listeners or jobs of the front 30 us + 3 us, of a level behind the
--        first 15 us. One call reads about 1 MiB, or one job that is more.
-- woken: 1 if a reader was woken, or 0; 2 after a blocked read: the call does nothing unless the read brought an entry.
-- duration: ms of these leases, '' for the worker's own (`lease`). ttl: ms for which to register a worker that has no
-- heartbeat, 0 when it must be registered already. heir_of: '', or the worker that had our name before and may still
-- hold jobs: they go to the front. apart: 0 no suspect, 1 one after all other
-- jobs, or after it has waited for a lease, 2 before them. Buckets, of rate limits:
-- {header or '' for the whole queue, ms a token takes, tokens at most}; a job that the limit of its header's value does
-- not admit goes to the consumer `limited` until it is due, and is handed out then, before all others. A bucket of 0 ms
-- makes an order: jobs with the same value of this header are handed out one at a time, in the order of their entries,
-- and the others wait with the consumer `behind`. levels: the streams of the later priority levels; a job of them that
-- is handed out moves to the jobs stream, with an id and its `enq`.
-- @feature leases
-- @feature delayed
-- @feature workers
-- @include clock
-- @include record

local known = recorded() -- the call was answered before, but its reply was lost

-- 1. Entries that woke a reader are with a reserved consumer; an error means that there is no group. A call behind a
-- blocked read ends here if the read brought nothing.
whole(lease)
local woke = redis.pcall('XPENDING', jobs, 'workers', '-', '+', 2, 'idle')
local tokens = woken ~= '0' and redis.pcall('XPENDING', wake, 'workers', '-', '+', 1, 'idle') or {}
local brought = #woke + #tokens > 0 or woke.err or tokens.err
if woken == '2' and not brought and not known then return {1, -1, {}, {}, 0, -1} end

-- 2. The fast path: no limits, levels or listeners, and no job is parked, postponed, released or due. This is nearly
-- always so, and the full path takes far longer. It hands out jobs that woke a reader, and new jobs. One call reads
-- about 1 MiB, or one larger job. The size of a job is known after the read; before it, only the largest size in the
-- queue is known. A foreign producer's job may be larger still, so the first reads are short.
local BUDGET = 1048576 + 4096 -- the last job may be small
if not known and #levels == 0 and buckets > #ARGV and duration == '' and (heir_of or '') == ''
  and not (woke.err or woke[2] or tokens.err or tokens[1]) and redis.call('EXISTS', limited, released, deaths, asleep) == 0 then
  local state = redis.call('HMGET', stats, 'largest', 'levels', 'listening', 'paused', 'healed', 'gate', 'terms')
  local first, now = redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2], clock()
  local deadline = tonumber(redis.call('ZSCORE', workers, worker) or 0)
  first = first and tonumber(first)
  if not (state[2] or state[3] or state[4] or state[5] or state[6] or state[7] or first and first <= now)
    and deadline > 0 and (ttl == 0 or deadline >= now) and #redis.call('XPENDING', jobs, 'workers', '-', '+', 1, 'parked') == 0
  then
    if ttl > 0 and deadline < now + ttl then
      redis.call('XACK', wake, 'workers', '0-0') -- a full server permits this first write
      redis.call('ZADD', workers, string.format('%.0f', now + ttl), worker)
    end
    local taken, fresh, entries = {}, {}, {}
    local largest, spent, count, at, flat = math.max(4096, tonumber(state[1] or 0)), 0, 0, 0, true
    local rows, chunk, carries = woke, 16, false
    if woke[1] then
      rows = redis.call('XCLAIM', jobs, 'workers', worker, 0, woke[1][1], 'RETRYCOUNT', 1)
      if not rows[1] then -- removed by XDEL by hand: 7.0 and later remove it from the pending list, 6.2 does not
        redis.call('XACK', jobs, 'workers', woke[1][1])
        rows = {}
      end
      for i = 1, rows[1] and #rows[1][2] or 0, 2 do carries = carries or rows[1][2][i] == 'attempt' end
    end
    local number, short = #rows, false -- of bytes
    while not carries do
      for i = 1, #rows do
        local entry, fields = rows[i][1], rows[i][2]
        local bytes = #fields[2]
        count = count + 1
        entries[count] = entry
        if flat and #fields == 2 and fields[1] == 'data' then -- flat: one table less per job, here and in every client
          at = at + 2
          fresh[at - 1], fresh[at] = entry, fields[2]
        else
          for j = 1, flat and at or 0, 2 do taken[#taken + 1] = {fresh[j], {'data', fresh[j + 1]}, 1, 0} end
          if flat then fresh, flat = {}, false end
          taken[#taken + 1] = {entry, fields, 1, 0}
          for j = 1, #fields do bytes = bytes + (j == 2 and 0 or #fields[j]) end
        end
        spent = spent + bytes
        if bytes > largest then largest = bytes end
      end
      if count == limit or #rows < number then break end
      number = math.max(0, math.floor((BUDGET - spent) / largest))
      if number < 1 and spent < BUDGET / 2 then number = 1 end
      short = number < 1
      if short then break end
      number = math.min(number, chunk, limit - count)
      if number == chunk then chunk = 4 * chunk end
      rows = redis.call('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', number, 'STREAMS', jobs, '>')
      rows = rows and rows[1][2] or {}
    end
    if not carries then
      if largest > tonumber(state[1] or 4096) then redis.call('HSET', stats, 'largest', largest) end
      local next_due = short and 0 or first and first - now or -1
      return answer({1, next_due, taken, fresh, 0, now}, entries, true) -- recorded without the payloads
    end
    redis.call('XCLAIM', jobs, 'workers', 'idle', 0, woke[1][1], 'RETRYCOUNT', 0, 'JUSTID') -- it may have no attempts left
  end
end

-- @include events
-- @include lease_limits
-- @include leasing
-- @include levels
-- @include max_job_size
-- @include ordered
-- @include page
-- @include finish
-- @include raise_level
-- @include rates
-- @include requeue_front
-- @include runs
-- @include suspects
-- @include take_over
-- @include take_turns
-- @include wake_many
-- @include weigh_job

-- 3. The jobs of a lost reply are still in the pending list.
if known then -- the reply was lost
  local again, died = leasing.again(known, jobs, worker, released, deaths, max_attempts)
  return {1, 0, again, {}, 0, clock(), died and 0 or nil, died} -- there may be more jobs
end

-- 4. Arguments; whether this worker gets any job; how many, by the limits of the whole queue.
if duration ~= '' then whole(duration) end
local q = {
  -- @queue without held, ready, resting, settled, shares, slots, stopped
  worker = worker, ttl = ttl, lease = lease, woken = woken, duration = duration, max_attempts = max_attempts,
  dead_limit = dead_limit, now = clock(), levels = (ttl > 0 and level_streams or known_streams)(stats, levels),
  taken = {}, entries = {}, dead_ids = {}, why = {},
  attempts = {died = {}, jobs = {}, runs = {}, deliveries = {}, room = runs.room()}, spent = 0,
}
local limits = rate_limits(q, buckets)
local nothing = leasing.begin(q)
if nothing then return nothing end
local now, keyed, listening, healed, parked, state = q.now, q.keyed, q.listening, q.healed, q.parked, q.state
local taken, fresh, entries = q.taken, {}, q.entries
local exact = #limits > 0 and pace.moment() or now
local wanted, hold = limit, 0
limit, hold = pace.room(rates, limits, exact, limit)
if limit == 0 then
  pace.write_scores(rates) -- corrected if the clock went back
  return {2, hold, {}, {}, healed, now}
end

-- 5. One call reads about 1 MiB.
local chunk, short = 16, false
function q.fits(most)
  local number = math.max(0, math.floor((BUDGET - q.spent) / q.largest))
  if number < 1 and q.spent < BUDGET / 2 then number = 1 end
  short = short or number < 1 and most > 0
  number = math.min(number, chunk, most)
  if number == chunk then chunk = 4 * chunk end
  return number
end
function q.left() return limit - #taken - #fresh / 2 end

-- 6. Jobs that are older than new ones: jobs of a predecessor, jobs that have the turn, parked jobs, jobs that woke a
-- reader.
local heir = heir_of and heir_of ~= ''
local turn = redis.call('ZRANGEBYSCORE', limited, '-inf', now, 'LIMIT', 0, 1)
q.awake = redis.call('ZRANGEBYSCORE', asleep, '-inf', now, 'LIMIT', 0, 100)
if state[3] then
  healing.readopt(q, stats, state[3], math.min(limit, 100), new_budget(262144))
  parked = redis.call('XPENDING', jobs, 'workers', '-', '+', 1, 'parked')
end
local idle = redis.call('XPENDING', jobs, 'workers', '-', '+', 1, 'idle')
if heir or q.watched or turn[1] or q.awake[1] or idle[1] or #parked > 0 or keyed or q.order or q.levels.n > 0 then
  -- Let a job wait for its turn: no delivery, and no attempt spent. *count*: deliveries so far, nil if it waited
  -- before.
  function q.put_off(some, dues, count)
    if #some == 0 then return end
    redis.call('ZADD', limited, unpack(dues))
    if not count then return end
    some[#some + 1], some[#some + 2], some[#some + 3] = 'RETRYCOUNT', count, 'JUSTID'
    redis.call('XCLAIM', jobs, 'workers', 'limited', 0, unpack(some))
  end
  -- Read a job of a pending list, once. *waited*: whether it waited for its turn.
  local function claim_admitted(row, count, waited)
    local entry = row[1]
    local body = redis.call('XRANGE', jobs, entry, entry)[1]
    local due = body and pace.admit(rates, limited, limits, exact, body[2], waited)
    if body and q.order then turning.read(q, {body}) end
    if not body then
      redis.call('XACK', jobs, 'workers', entry)
    elseif q.order and not turning.takes(q, entry) then
      weigh_job(q, body[2])
      redis.call('ZREM', limited, entry)
      turning.put_behind(q, {entry}, count)
    elseif due then
      weigh_job(q, body[2])
      q.put_off({entry}, {math.ceil(due), entry}, not waited and count)
    else
      redis.call('ZREM', limited, entry)
      redis.call('XCLAIM', jobs, 'workers', worker, 0, entry, 'RETRYCOUNT', count + 1, 'JUSTID')
      leasing.hand_out(q, entry, body[2], count + 1)
    end
  end
  local function claim(rows, from, to, idle)
    if keyed then
      for i = from, to do claim_admitted(rows[i], idle and 0 or rows[i][4], false) end
      return
    end
    local list, counts, there = {}, {}, {}
    for i = from, to do
      list[#list + 1] = rows[i][1]
      counts[rows[i][1]] = idle and 1 or rows[i][4] + 1
    end
    if idle then list[#list + 1] = 'RETRYCOUNT'; list[#list + 1] = 1 end
    local got = redis.call('XCLAIM', jobs, 'workers', worker, 0, unpack(list))
    if q.order then turning.read(q, got) end
    for i = 1, #got do
      if got[i] then
        local entry, fields = got[i][1], got[i][2]
        there[entry] = true
        if not q.order or turning.takes(q, entry) then
          leasing.hand_out(q, entry, fields, counts[entry])
        else
          weigh_job(q, fields)
          turning.put_behind(q, {entry}, counts[entry] - 1)
        end
      end
    end
    -- Removed by XDEL by hand: 7.0 and later remove them from the pending list, 6.2 does not.
    for i = from, to do
      if not there[rows[i][1]] then
        redis.call('XACK', jobs, 'workers', rows[i][1])
        if q.order then
          turning.write(q)
          forget_turns(q, {rows[i][1]})
          q.heads, q.passed = {}, true
        end
      end
    end
  end
  -- Older jobs take the places of removed and dead jobs, or new jobs would overtake them; for a bounded number of
  -- rounds.
  function q.front(owner)
    local seen = 0
    while q.left() > 0 do
      local asked = q.left()
      local rows = redis.call('XPENDING', jobs, 'workers', '-', '+', asked, owner)
      local at = 1
      while at <= #rows do
        local number = q.fits(#rows - at + 1)
        if number == 0 then return end
        claim(rows, at, at + number - 1, owner == 'idle')
        at = at + number
      end
      seen = seen + #rows
      if #rows < asked or seen > limit + 100 then return end
    end
  end
  function q.hand_out_suspect(idle)
    local row, most = suspects.next(q, idle), limit
    limit = 1
    for _ = 1, row and 10 or 0 do
      claim({row}, 1, 1, false)
      q.passed, row = true, #entries == 0 and suspects.next(q, idle) or nil
      if not row then break end
    end
    if #entries > 0 then wanted = 1 else limit = most end
  end
  if heir then
    redis.call('ZADD', workers, 'XX', 0, heir_of) -- if it is alive, its next beat fails
    local most = limit + ((listening.reclaimed or q.levels.n > 0) and 100 or 400) -- jobs that must be read take longer
    local moved, _, ids_back = take_over(q, heir_of, most, new_budget(math.max(0, BUDGET - q.spent)), listening.reclaimed)
    if listening.reclaimed then publish(events, 'reclaimed', ids_back, heir_of) end
    wake_many(wake, moved)
    q.watched = redis.call('EXISTS', deaths) == 1
  end
  q.suspects = q.watched and (apart == '1' or apart == '2') and max_attempts > 0
  if q.suspects then q.hand_out_suspect(apart == '2' and 0 or lease) end
  -- Jobs that waited for their turn come first, as they are older.
  for _, entry in ipairs(turn[1] and pace.oldest_due(limited, now, 100) or {}) do
    if q.left() == 0 then break end
    local row = redis.call('XPENDING', jobs, 'workers', entry, entry, 1, 'limited')[1]
    if row and q.fits(1) == 0 then break end
    if row and q.watched and suspects.deaths(deaths, entry, max_attempts) then
      park_at(jobs, SUSPECTS, {entry})
      redis.call('ZREM', limited, entry)
      q.passed = true
    elseif row then
      claim_admitted(row, row[4], true)
    else
      redis.call('ZREM', limited, entry)
    end
  end
  -- So do suspended runs that are due.
  for _, entry in ipairs(q.awake) do
    local row = redis.call('XPENDING', jobs, 'workers', entry, entry, 1)[1]
    local suspended = row and runs.suspended(row[2])
    if q.left() == 0 or suspended and q.fits(1) == 0 then break end
    redis.call('ZREM', asleep, entry)
    if suspended then
      redis.call('ZREM', leases, entry)
      claim_admitted(row, row[4], false)
    end
  end
  if #parked > 0 or heir then q.front('parked') end
  if q.watched and max_attempts == 0 then q.front(SUSPECTS) end -- without an end, none is a suspect
  q.front('idle')
end

-- 7. New jobs, chunk by chunk, until there are no more.
local putting = keyed or q.order ~= nil
local seen, further = 0, putting
local most_seen = putting and math.max(limit, 250) or limit + 250 -- postponing a job takes as long as handing out several
local plain = redis.call('EXISTS', released) == 0 -- otherwise a job may carry releases from an earlier entry
local carry = not plain
plain = plain and not keyed
-- Jobs that were handed out so far come before jobs that are not flat.
function q.unflatten()
  for i = 1, #fresh, 2 do taken[#taken + 1] = {fresh[i], {'data', fresh[i + 1]}, 1, 0} end
  fresh, plain = {}, false
end
local others = {} -- jobs behind another of their key
function q.read()
  while q.left() > 0 and seen < most_seen and not short do
    local number = q.fits(q.left())
    local rows = number > 0 and redis.call('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', number, 'STREAMS', jobs, '>')
    rows = rows and rows[1][2] or {}
    local count, at, later, dues = #entries, #fresh, {}, {}
    if q.order then turning.read(q, rows) end
    for i = 1, #rows do
      local entry, fields = rows[i][1], rows[i][2]
      local bytes = #fields[2]
      if plain and #fields == 2 and fields[1] == 'data' then -- flat: one table less per job, here and in every client
        count, at = count + 1, at + 2
        entries[count], fresh[at - 1], fresh[at] = entry, entry, fields[2]
      else
        if plain then q.unflatten() end
        bytes = size_of(fields)
        local due = keyed and pace.admit(rates, limited, limits, exact, fields, false)
        if q.order and not turning.takes(q, entry) then
          others[#others + 1] = entry
        elseif due then
          later[#later + 1] = entry
          dues[#dues + 1], dues[#dues + 2] = math.ceil(due), entry
        else
          count = count + 1
          entries[count] = entry
          taken[#taken + 1] = {entry, fields, 1, carry and (tonumber(redis.call('HGET', released, entry) or 0) or 0) or 0}
        end
      end
      q.spent = q.spent + bytes
      if bytes > q.largest then q.largest = bytes end
    end
    if keyed then q.put_off(later, dues, 0) end
    seen = seen + #rows
    if #rows < number then
      further = false
      return
    end
  end
end
-- If a job is postponed, jobs from before the group was lost may not all be in front yet: they come first.
if not (putting and state[3] and redis.call('HEXISTS', stats, 'healed') == 1) then q.read() end
if q.order then
  turning.write(q)
  turning.put_behind(q, others, 0)
end

-- 8. The later levels, while there is room.
local risen = 0 -- raising a job takes as long as handing out several
for level = 1, q.left() > 0 and not short and q.levels.n or 0 do
  q.unflatten() -- they come before the jobs of later levels
  q.front(front_of(level))
  while q.left() > 0 and not short and seen < most_seen and risen < 150 do
    local number = math.min(q.fits(q.left()), 150 - risen)
    local page = number > 0 and redis.call('XRANGE', q.levels[level], '-', '+', 'COUNT', number) or {}
    number = raise_level(q, level, 0, page)
    if number == 0 then break end
    risen = risen + number
    q.read()
  end
end
further = further or risen == 150
if putting and q.left() > 0 and seen >= most_seen then further = true end
if q.largest > tonumber(state[2] or 4096) then keep_max_job_size(stats, q.largest) end
if q.suspects and #entries + #fresh == 0 and not short then q.hand_out_suspect(0) end
return answer(leasing.finish(q, fresh, limits, exact, limit, wanted, further or short or q.passed))
