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
do
  -- The call asks for nothing else, no reader but this was woken, and no job is in another state.
  local short = not known and #levels == 0 and buckets > #ARGV and duration == '' and (heir_of or '') == ''
    and not (woke.err or woke[2] or tokens.err or tokens[1])
    and redis.call('EXISTS', limited, released, deaths, asleep) == 0
  -- The queue is plain, no job is due or parked, and the worker is registered.
  local state, first, now, deadline
  if short then
    state = redis.call('HMGET', stats, 'largest', 'levels', 'listening', 'paused', 'healed', 'gate', 'terms')
    first = tonumber(redis.call('ZRANGE', delayed, 0, 0, 'WITHSCORES')[2])
    now = clock()
    deadline = tonumber(redis.call('ZSCORE', workers, worker) or 0)
    short = not (state[2] or state[3] or state[4] or state[5] or state[6] or state[7]) and not (first and first <= now)
      and deadline > 0 and (ttl == 0 or deadline >= now)
      and #redis.call('XPENDING', jobs, 'workers', '-', '+', 1, 'parked') == 0
  end
  -- The job that woke this reader. If it has an `attempt`, it may have none left: the full path asks.
  local rows = woke
  if short then
    if ttl > 0 and deadline < now + ttl then
      redis.call('XACK', wake, 'workers', '0-0') -- a full server permits this first write
      redis.call('ZADD', workers, string.format('%.0f', now + ttl), worker)
    end
    if woke[1] then
      local entry = woke[1][1]
      rows = redis.call('XCLAIM', jobs, 'workers', worker, 0, entry, 'RETRYCOUNT', 1)
      if rows[1] then
        local fields = rows[1][2]
        for i = 1, #fields, 2 do
          if fields[i] == 'attempt' then short = false end
        end
        if not short then redis.call('XCLAIM', jobs, 'workers', 'idle', 0, entry, 'RETRYCOUNT', 0, 'JUSTID') end
      else -- removed by XDEL by hand: 7.0 and later remove it from the pending list, 6.2 does not
        redis.call('XACK', jobs, 'workers', entry)
        rows = {}
      end
    end
  end
  -- New jobs, more of them with each read.
  if short then
    local largest = math.max(4096, tonumber(state[1] or 0))
    local taken, fresh, entries = {}, {}, {}
    local count = 0 -- jobs
    local at = 0 -- the end of `fresh`
    local flat = true -- so far each job has only a payload: one table less per job, here and in every client
    local spent = 0 -- bytes
    local chunk = 16
    local cut = false -- whether it ends by bytes
    local number = #rows
    while true do
      for i = 1, #rows do
        local entry, fields = rows[i][1], rows[i][2]
        local bytes = #fields[2]
        count = count + 1
        entries[count] = entry
        if flat and #fields == 2 and fields[1] == 'data' then
          at = at + 2
          fresh[at - 1] = entry
          fresh[at] = fields[2]
        else
          if flat then
            for j = 1, at, 2 do taken[#taken + 1] = {fresh[j], {'data', fresh[j + 1]}, 1, 0} end
            fresh = {}
            flat = false
          end
          taken[#taken + 1] = {entry, fields, 1, 0}
          for j = 1, #fields do bytes = bytes + (j == 2 and 0 or #fields[j]) end
        end
        spent = spent + bytes
        if bytes > largest then largest = bytes end
      end
      if count == limit or #rows < number then break end
      number = math.max(0, math.floor((BUDGET - spent) / largest))
      if number < 1 and spent < BUDGET / 2 then number = 1 end
      cut = number < 1
      if cut then break end
      number = math.min(number, chunk, limit - count)
      if number == chunk then chunk = 4 * chunk end
      rows = redis.call('XREADGROUP', 'GROUP', 'workers', worker, 'COUNT', number, 'STREAMS', jobs, '>')
      rows = rows and rows[1][2] or {}
    end
    if largest > tonumber(state[1] or 4096) then redis.call('HSET', stats, 'largest', largest) end
    local next_due = cut and 0 or first and first - now or -1
    return answer({1, next_due, taken, fresh, 0, now}, entries, true) -- recorded without the payloads
  end
end

-- @fragments

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
  taken = {}, fresh = {}, entries = {}, dead_ids = {}, why = {}, letters = {}, over_dead = {}, room = runs.room(),
  spent = 0, budget = BUDGET,
}
q.limits = rate_limits(q, buckets)
local nothing = leasing.begin(q)
if nothing then return nothing end
q.exact = #q.limits > 0 and pace.moment() or q.now
local wanted, hold = limit, 0
q.limit, hold = pace.room(rates, q.limits, q.exact, limit)
if q.limit == 0 then
  pace.write_scores(rates) -- corrected if the clock went back
  return {2, hold, {}, {}, q.healed, q.now}
end
portion.begin(q)

-- 5. Jobs that are older than new ones.
local heir = heir_of ~= '' and heir_of or nil
if older.some(q, heir) then
  if heir then leasing.inherit(q, heir, q.limit, new_budget(math.max(0, BUDGET - q.spent))) end
  q.suspects = q.watched and (apart == '1' or apart == '2') and max_attempts > 0
  if q.suspects then older.suspect(q, apart == '2' and 0 or lease) end
  older.due(q)
  older.awake(q)
  if #q.parked > 0 or heir then older.front(q, 'parked') end
  if q.watched and max_attempts == 0 then older.front(q, SUSPECTS) end -- without an end, none is a suspect
  older.front(q, 'idle')
end

-- 6. New jobs, and then the later levels. If a job is postponed, jobs from before the group was lost may not all be in
-- front yet: they come first.
newer.begin(q)
local healing_still = q.putting and q.state[3] and redis.call('HEXISTS', stats, 'healed') == 1
if not healing_still then newer.read(q) end
if q.order then
  turning.write(q)
  hand_to(q.jobs, 'behind', q.others, 0)
end
newer.read_levels(q)
if q.largest > tonumber(q.state[2] or 4096) then keep_max_job_size(stats, q.largest) end
if q.suspects and #q.entries + #q.fresh == 0 and not q.short then older.suspect(q, 0) end
if q.apart then wanted = 1 end
return answer(leasing.finish(q, q.fresh, q.limit, wanted, q.further or q.short or q.passed))
