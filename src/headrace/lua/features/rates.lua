-- feature rates: so many jobs a second, of all or of a key.
-- KEYS   rates (zset)
-- Token buckets of rate limits. We store one number per bucket, the time at which it will be full again, and delete it
-- after that. limits: {name = header or '' for the whole queue, step = ms that a token takes, burst = tokens it
-- holds}... A call cannot meet a moment exactly: it gets a token up to 1 ms early, and the next one counts from when
-- that was due. So calls that come a little early or late by turns still reach the limit, and no period has more jobs
-- than the limit and 1 ms allow.
local pace = {} -- in a table, as a script has 200 locals at most
function pace.moment()
  local time = redis.call('TIME')
  return time[1] * 1000 + time[2] / 1000
end
local EARLY = 1
-- Buckets are read once in a call, and written at its end.
pace.scores, pace.changed = {}, {}
function pace.score(rates, member)
  pace.scores[member] = pace.scores[member] or tonumber(redis.call('ZSCORE', rates, member) or 0)
  return pace.scores[member]
end
function pace.set_score(member, at)
  pace.scores[member], pace.changed[member] = at, string.format('%.3f', at)
end
function pace.write_scores(rates)
  local flat = {}
  for member, at in pairs(pace.changed) do flat[#flat + 1], flat[#flat + 2] = at, member end
  in_parts(flat, function(...) redis.call('ZADD', rates, ...) end)
end
-- The time at which a bucket is full. It is never later than for an empty bucket, or a clock that went back would keep
-- the bucket empty. The corrected time is stored, or the next call would find the bucket as empty.
function pace.bucket(rates, member, now, limit)
  local full, latest = pace.score(rates, member), now + limit.burst * limit.step + EARLY
  if full > latest then
    full = latest
    pace.set_score(member, full)
  end
  return math.max(now, full)
end
-- The time at which the last job that waits for a bucket is due. For the same reason it is never later than the time of
-- any postponed job. It does not include the jobs that this call postpones.
function pace.last_due(rates, limited, member, now)
  local last = pace.score(rates, member)
  if last <= now or pace.changed[member] then return last end
  pace.latest = pace.latest or tonumber(redis.call('ZREVRANGE', limited, 0, 0, 'WITHSCORES')[2] or 0)
  return math.min(last, pace.latest)
end
-- Count the jobs that the limits of the whole queue admit now, at most *most*; if none, the ms until there is one.
function pace.room(rates, limits, now, most)
  local wait = 0
  for i, limit in ipairs(limits) do
    if limit.name == '' then
      local missing = pace.bucket(rates, 'q' .. i, now, limit) - now -- ms
      most = math.min(most, math.floor(limit.burst - math.max(0, missing - EARLY) / limit.step + 0.001))
      wait = math.max(wait, 1, math.ceil(missing - (limit.burst - 1) * limit.step - EARLY))
    end
  end
  return math.max(0, most), wait
end
function pace.spend(rates, limits, now, jobs)
  for i, limit in ipairs(limits) do
    if limit.name == '' and jobs > 0 then
      pace.set_score('q' .. i, pace.bucket(rates, 'q' .. i, now, limit) + jobs * limit.step)
    end
  end
end
-- The oldest *limit* of the due jobs. Their moments shift while no call takes them, and may pass each other, so entry
-- IDs give the order. This reads the first 1,000 jobs that are due, or will be within 2 ms: a token may be that early,
-- and a moment is rounded up. A new job waits behind older jobs of its key: `unseen` is the first moment of the due
-- jobs that are left for the next call.
function pace.oldest_due(limited, now, limit)
  local rows = redis.call('ZRANGEBYSCORE', limited, '-inf', now + 2, 'WITHSCORES', 'LIMIT', 0, 1000)
  local due, oldest = {}, {}
  for i = 1, #rows, 2 do
    local ms, number = string.match(rows[i], '^(%d+)-(%d+)$')
    due[#due + 1] = {rows[i], tonumber(ms or 0), tonumber(number or 0), tonumber(rows[i + 1])}
  end
  table.sort(due, function(a, b) return a[2] < b[2] or a[2] == b[2] and a[3] < b[3] end)
  for i, job in ipairs(due) do
    if i <= limit then oldest[i] = job[1] else pace.unseen = math.min(pace.unseen or job[4], job[4]) end
  end
  return oldest
end
-- Admit a job by the limits of its keys, and spend its tokens: then nil. Otherwise answer when it is due. Jobs that
-- wait for a bucket are due one step after the other, and a new job waits behind them.
pace.given = {} -- when the last job that waited for a bucket is due
function pace.admit(q, fields, waited)
  local rates, now, charge, due, behind = q.rates, q.exact, {}, 0, {}
  for _, limit in ipairs(q.limits) do
    local value
    for i = 1, limit.name ~= '' and #fields or 0, 2 do
      if fields[i] == limit.name then value = fields[i + 1] end
    end
    if value then
      local member = #limit.name .. limit.name .. value
      local full = pace.bucket(rates, 'k' .. member, now, limit)
      local first = full - (limit.burst - 1) * limit.step -- when there is a token
      local last = pace.last_due(rates, q.limited, 'w' .. member, now)
      charge[#charge + 1] = {full + limit.step, 'k' .. member}
      if first > now + EARLY or not waited and (last > now or pace.unseen and last > pace.unseen - 1) then
        local turn = waited and pace.given[member] or not waited and last or 0
        due = math.max(due, first, turn + limit.step)
        behind[#behind + 1] = {member, last}
      end
    end
  end
  for _, pair in ipairs(due == 0 and charge or {}) do pace.set_score(pair[2], pair[1]) end
  for _, pair in ipairs(behind) do
    pace.given[pair[1]] = due
    if due > pair[2] then pace.set_score('w' .. pair[1], due) end
  end
  return due > 0 and due or nil
end
