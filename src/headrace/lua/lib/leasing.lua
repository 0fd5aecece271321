-- The parts that `lease` and `lease_fair` have in common: a table of functions, as a script has 200 locals at most. q has
-- the keys and arguments of these scripts by name (as locals of the scripts they would be slow to reach), and what the call
-- finds. taken: the jobs that are handed out, entries: their entries; dead_ids: the ids of jobs that died, and why.
local leasing = {}
-- The group is there, and the worker is registered. Then, before any job is handed out: wake tokens, a pause, due jobs,
-- and suspects: a caller without a heartbeat that holds one gets no other job. Answers the reply if it gets none.
function leasing.begin(q)
  local now = q.now
  local state = redis.call('HMGET', q.stats, 'paused', 'largest', 'healed', 'gate', 'terms')
  if state[5] and not q.fair then return {5, -1, {}, {}, 0, now, 0, {}, 0, state[5]} end
  q.listening = listeners(q.stats, q.events, 'leased', 'dead', 'promoted', 'reclaimed')
  require_hashes(q.deaths, q.steps)
  require_history(q.listening.history, q.ends, q.ended)
  q.parked, q.healed = heal_group(q.jobs, q.wake, function() return redis.pcall('XPENDING', q.jobs, 'workers', '-', '+', 1, 'parked') end)
  if q.parked.err then return q.parked end
  -- A full server permits the first write; then it permits all others, too.
  redis.call('XACK', q.wake, 'workers', '0-0')
  if q.healed == 1 then
    healing.forget_leases(q)
    state[3] = redis.call('HGET', q.stats, 'healed')
  end
  q.deadline = tonumber(redis.call('ZSCORE', q.workers, q.worker) or 0)
  if q.ttl > 0 then
    if q.deadline < now then
      redis.call('HSET', q.registered, q.worker, string.format('%.0f', now) .. ' ' .. q.lease)
      tell_holders(q.control, 'active')
    end
    if q.deadline < now + q.ttl then redis.call('ZADD', q.workers, string.format('%.0f', now + q.ttl), q.worker) end
  elseif q.deadline == 0 then
    return {0, -1, {}, {}, q.healed, now}
  end
  if q.woken == '1' or q.woken == '2' then q.healed = math.max(q.healed, clear_wake_tokens(q.wake)) end
  if state[1] then return {2, -1, {}, {}, q.healed, now} end
  local first = redis.call('ZRANGE', q.delayed, 0, 0, 'WITHSCORES')
  q.largest = math.max(4096, tonumber(state[2] or 0))
  if first[2] and tonumber(first[2]) <= now then
    local budget = {left = 262144}
    local promoted = promote(q, now, 100, budget)
    q.promoted = 262144 - budget.left
    if q.listening.promoted then publish(q.events, 'promoted', promoted) end
    q.largest = math.max(q.largest, tonumber(redis.call('HGET', q.stats, 'largest') or 0))
    first = redis.call('ZRANGE', q.delayed, 0, 0, 'WITHSCORES')
  end
  q.state, q.first = state, first
  q.watched = redis.call('EXISTS', q.deaths) == 1
  for _, row in ipairs(q.watched and q.ttl > 0 and redis.call('XPENDING', q.jobs, 'workers', '-', '+', 100, q.worker) or {}) do
    if suspects.deaths(q.deaths, row[1], q.max_attempts) then return {2, -1, {}, {}, q.healed, now} end
  end
end
-- Jobs of a predecessor go to the front: *most*, and some more.
function leasing.inherit(q, heir, most, budget)
  redis.call('ZADD', q.workers, 'XX', 0, heir) -- if it is alive, its next beat fails
  local reclaimed = q.listening.reclaimed
  most = most + ((reclaimed or q.levels.n > 0) and 100 or 400) -- jobs that must be read take longer
  local moved, _, ids_back = take_over(q, heir, most, budget, reclaimed)
  if reclaimed then publish(q.events, 'reclaimed', ids_back, heir) end
  wake_many(q.wake, moved)
  q.watched = redis.call('EXISTS', q.deaths) == 1
end
-- The jobs of a lost reply, from its record *known*, that the worker still holds; and the jobs that died, nil for none.
function leasing.again(known, jobs, worker, released, deaths, max_attempts)
  local again = {}
  local died = type(known[#known]) == 'table' and table.remove(known) or nil
  for _, entry in ipairs(known) do
    local row = redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1, worker)[1] -- none if the group is gone
    local body = row and redis.call('XRANGE', jobs, entry, entry)[1]
    if body then
      local releases = tonumber(redis.call('HGET', released, entry) or 0) or 0
      again[#again + 1] = {entry, body[2], row[4], releases, suspects.deaths(deaths, entry, max_attempts)}
    end
  end
  return again, died
end
-- Hand out a job, or keep it as a dead letter after its last attempt. *count*: its deliveries, this one included.
function leasing.hand_out(q, entry, fields, count)
  weigh_job(q, fields)
  local releases = (tonumber(redis.call('HGET', q.released, entry) or 0) or 0)
  local own, headers = parse(fields)
  local attempt = tonumber(own.attempt or 0) + count - releases
  local deaths = q.watched and tonumber(redis.call('HGET', q.deaths, entry) or 0) or 0
  if q.max_attempts > 0 and (attempt - deaths > q.max_attempts or deaths >= suspects.AT_MOST) then
    require_hashes(q.ids, q.released, q.stats, q.turns)
    require_sorted_sets(q.leases, q.limited, q.flows)
    require_streams(q.dead)
    if q.order then turning.write(q) end
    tried.add(q.turns, entry, own)
    local reason = 'no attempts left: its workers died, or let its leases expire'
    if deaths >= suspects.AT_MOST then
      reason = string.format('no attempts left: its process died %d times while it ran', deaths)
    end
    if own.reason and string.sub(own.reason, 1, 16) ~= 'no attempts left' then -- the reason of a redriven job
      reason = reason .. '; before that: ' .. own.reason
    end
    depart(q, {entry}, {ids = {own.id}, what = DIED, told = {[own.id or entry] = reason}})
    if q.order then q.heads, q.passed = {}, true end -- the next job of its key is in front now
    own.attempt, own.id = string.format('%.0f', attempt - 1 + releases), own.id or entry
    own.enq = own.enq or string.match(entry, '^%d+')
    if deaths > 0 then redis.call('HDEL', q.deaths, entry) end
    local trace = q.listening.history and runs.of_job(q.steps, own) and runs.kept(q.steps, own.id, q.room)
    local letter = keep_dead(q, q.dead_limit, reason, q.worker, releases, own, headers)
    local n = #q.dead_ids + 1
    q.dead_ids[n], q.why[n], q.letters[n] = own.id, reason, letter
    q.over_dead[n] = q.listening.history and {
      id = own.id, attempt = string.format('%.0f', attempt - 1), reason = reason, fields = compose(own, headers),
      run = trace, delivery = tonumber(own.attempt),
    } or nil
  else
    q.taken[#q.taken + 1] = {entry, fields, count, releases, q.max_attempts > 0 and deaths >= suspects.FROM and deaths or nil}
    q.entries[#q.entries + 1] = entry
  end
end
-- Records and events of the jobs that were handed out, and the time of the next call. *again*: there may be more jobs.
-- *more*: further parts of the reply. Answers the reply, and its record.
function leasing.finish(q, fresh, limit, wanted, again, more)
  local now, entries, listening = q.now, q.entries, q.listening
  if q.duration ~= '' then
    for i = 1, #entries do redis.call('ZADD', q.leases, string.format('%.0f', now + tonumber(q.duration)), entries[i]) end
  end
  keep_ends(listening.history, q.ends, q.ended, 'dead', q.over_dead)
  if listening.dead then publish(q.events, 'dead', q.dead_ids, q.worker, q.why) end
  if listening.leased then
    local ids_leased = {}
    for i = 1, #q.taken do ids_leased[i] = parse(q.taken[i][2]).id or q.taken[i][1] end
    for i = 1, #fresh, 2 do ids_leased[#ids_leased + 1] = fresh[i] end
    publish(q.events, 'leased', ids_leased, q.worker)
  end
  local next_due, first = -1, q.first
  if first[2] then next_due = math.max(0, tonumber(first[2]) - now) end
  for _, key in ipairs({q.limited, q.asleep, q.resting}) do
    first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if first[2] and first[2] ~= 'inf' then
      local due = math.max(0, tonumber(first[2]) - now)
      next_due = next_due < 0 and due or math.min(next_due, due)
    end
  end
  if again then next_due = 0 end -- there may be more jobs behind postponed ones, and beyond 1 MiB
  pace.spend(q.rates, q.limits, q.exact, #entries)
  local cut = limit < wanted and #entries == limit -- cut by the limit: there may be more jobs at the next token
  if cut then next_due = select(2, pace.room(q.rates, q.limits, q.exact, 1)) end
  if q.state[4] and #entries > 0 then open_gate(q, q.gate, q.state[4], now) end
  pace.write_scores(q.rates)
  if q.keyed then redis.call('ZREMRANGEBYSCORE', q.rates, '-inf', math.min(now, pace.unseen and pace.unseen - 1 or now)) end
  local reply = {cut and 2 or 1, next_due, q.taken, fresh, q.healed, now, q.levels.beyond}
  if #q.dead_ids > 0 or more then
    reply[7], reply[8] = q.levels.beyond or 0, q.letters
    if more then reply[9], reply[10] = unpack(more) end
  end
  if #q.dead_ids > 0 then entries[#entries + 1] = q.letters end
  return reply, entries -- recorded without the payloads
end
