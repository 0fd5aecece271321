-- The terms that a queue has agreed on: the path of `fair`, the further keys of limits and rates, and the numbers. See
-- features/limits.lua for the form of lines and nodes.
local agreed = {BYTES = 500, MOST = 1000000}
-- The record of a node in `shares`, below its text: credit, mean run time, leased jobs, round and number of its turn, ms
-- that jobs waited (median, 95th percentile), and its ring, 0 for none.
agreed.NODE = '<i8i8I4i8i8ffB'
-- Paused values are in `terms`: 'p' and the text of a node without its level -> lp of each of its headers; 'paused' -> their
-- number; 'resumed' (packed) -> {text, where its next line is searched, level} of values whose lines are to take part again.
agreed.PAUSED = 1000
-- Note the structure of the queue, and since when it has it; '' for none.
function agreed.note(stats, structure)
  if (redis.call('HGET', stats, 'terms') or '') ~= structure then redis.call('HSET', stats, 'terms_at', string.format('%.0f', clock())) end
  if structure == '' then redis.call('HDEL', stats, 'terms') else redis.call('HSET', stats, 'terms', structure) end
end
-- The headers of the values that a queue with these terms has, as the field of a paused value names them: of one, and of both.
function agreed.headers(packed)
  local path, _, limits = unpack(cmsgpack.unpack(packed))
  local found, text = {}, ''
  for i = 1, #path do
    text = text .. holds.lp(path[i])
    found[text] = true
  end
  for i = 1, #path == 0 and #limits or 0 do
    if limits[i][1] ~= '' then found[holds.lp(limits[i][1])] = true end
  end
  return found
end
function agreed.paused(key)
  local found = {}
  for _, field in ipairs(redis.call('HEXISTS', key, 'paused') == 1 and redis.call('HKEYS', key) or {}) do
    if string.find(field, '^p[%d-]') then found[#found + 1] = string.sub(field, 2) end
  end
  return found
end
-- Values of other headers are paused no more.
local function keep_paused(key, packed)
  local paths, headers = agreed.paused(key), agreed.headers(packed)
  local number = #paths
  for _, path in ipairs(paths) do
    if not headers[redis.call('HGET', key, 'p' .. path)] then
      redis.call('HDEL', key, 'p' .. path)
      number = number - 1
    end
  end
  if number > 0 then redis.call('HSET', key, 'paused', number) else redis.call('HDEL', key, 'paused') end
end
function agreed.write(key, stats, structure, packed)
  if redis.call('HEXISTS', key, 'paused') == 1 then keep_paused(key, packed) end
  redis.call('HSET', key, 'structure', structure, 'packed', packed)
  redis.call('HDEL', key, 'next', 'next_packed')
  agreed.note(stats, structure)
end
-- *given*: {path: {...}, keys: {...}, limits: {{key or '', most, 1 if values have their own}...}, rates: {{key or '', ms of a token, tokens}...}}.
function agreed.packed(given)
  return cmsgpack.pack({given.path, given.keys, given.limits, given.rates})
end
-- The terms, or nil. want: the number of each name; slots: the limits with a key; most: the limit of the queue.
function agreed.read(key)
  local kept = redis.call('HMGET', key, 'structure', 'packed', 'mean', 'weighted', 'again', 'halved', 'next', 'paused', 'resumed')
  if not kept[2] then return nil end
  local path, keys, limits, rates = unpack(cmsgpack.unpack(kept[2]))
  local t = {
    structure = kept[1], mean = tonumber(kept[3] or 5000), weighted = kept[4] == '1', again = kept[5], halved = kept[6],
    next = kept[7], depth = #path, number = #path + #keys, want = {['headrace-cost'] = 0}, slots = {}, most = false,
    cache = {}, rates = rates, paused = kept[8], resumed = kept[9] and cmsgpack.unpack(kept[9]),
  }
  for i = 1, #path do t.want[path[i]] = i end
  for i = 1, #keys do t.want[keys[i]] = #path + i end
  for i = 1, #limits do
    local name, most, each = unpack(limits[i])
    if name == '' then
      t.most = most
    else
      t.slots[#t.slots + 1] = {at = t.want[name], key = holds.lp(name), most = most, each = each}
    end
  end
  return t
end
-- The limit that a value has of its own, which is in `terms`; nil if it has none.
function agreed.own(key, limit, slot) return limit.each and tonumber(redis.call('HGET', key, 'e' .. slot) or nil) end
-- The rate limits of the queue, as `lease_limits` has them.
function agreed.rates(q, t)
  for i, rate in ipairs(t.rates) do
    q.limits[i] = {name = rate[1], step = rate[2], burst = rate[3]}
    q.keyed = q.keyed or rate[1] ~= ''
  end
end
-- The values that a job has of these names, by number, and its cost, 0 for none.
function agreed.values(t, fields)
  local values, cost, want = {}, 0, t.want
  for i = 1, #fields, 2 do
    local at = want[fields[i]]
    if at == 0 then
      cost = tonumber(string.match(fields[i + 1], '^[%d.]+e?[-+]?%d*$') or 0) or 0
      cost = cost > 0 and math.min(math.max(cost, 0.001), agreed.MOST) or 0
    elseif at then
      values[at] = #fields[i + 1] <= agreed.BYTES and fields[i + 1] or string.sub(fields[i + 1], 1, agreed.BYTES)
    end
  end
  return values, cost
end
function agreed.line(t, level, values)
  local line = tostring(level)
  for i = 1, t.number do line = line .. holds.lp(values[i]) end
  return line
end
-- The values in the text of a line or node, and where each ends.
function agreed.split(line)
  local values, ends, at, n = {}, {}, 2, 0
  while at <= #line do
    local bytes, text = string.match(line, '^(%d+):()', at)
    n = n + 1
    if bytes then
      at = text + tonumber(bytes)
      values[n] = string.sub(line, text, at - 1)
    else
      at = at + 1
    end
    ends[n] = at - 1
  end
  return values, ends
end
-- Go on with a change of the structure: jobs in lines go to the front of their levels, at most 500 a call, as lines
-- of their own come with their next look. Answers whether that was all: then the terms are the new ones. '' as the next structure: none.
function agreed.change(q)
  for _, owner in ipairs({'parked:front', 'parked:new'}) do
    local known = redis.call('HMGET', q.stats, 'levels', 'largest')
    local deepest = tonumber(known[1] or 0)
    local most = deepest > 0 and math.floor(1048576 / math.max(2097, tonumber(known[2] or 0))) or 500 -- they are read
    local rows, fronts = redis.call('XPENDING', q.jobs, 'workers', '-', '+', math.max(1, most), owner), {}
    for i = 1, #rows do
      local body = deepest > 0 and redis.call('XRANGE', q.jobs, rows[i][1], rows[i][1])[1]
      local front = front_of(body and level_of(body[2], deepest) or 0)
      fronts[front] = fronts[front] or {}
      table.insert(fronts[front], rows[i][1])
    end
    for front, some in pairs(fronts) do hand_to(q.jobs, front, some, owner == 'parked:new' and 0) end
    if #rows > 0 then return false end
  end
  local after = redis.call('HMGET', q.terms, 'next', 'next_packed')
  redis.call('UNLINK', q.lines, q.ready, q.stopped, q.resting, q.shares, q.settled, q.busy)
  if after[1] == '' then
    redis.call('UNLINK', q.terms, q.held, q.slots)
    agreed.note(q.stats, '')
  else
    redis.call('HDEL', q.terms, 'resumed') -- all lines begin anew
    agreed.write(q.terms, q.stats, after[1], after[2])
  end
  return true
end
