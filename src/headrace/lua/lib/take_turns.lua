-- Hand out jobs of a key one at a time. q.order: the header with the key. `turning.write` writes the result.
local turning = {} -- in a table, as a script has 200 locals at most
function turning.begin(q, order)
  if q.levels.n > 0 then error('ARGUMENT ' .. order .. ': no order over several levels', 0) end
  q.order, q.keys, q.heads, q.turns_set, q.places = order, {}, {}, {}, {}
end
-- Read which entry has the turn, for the keys of these rows that were not read before.
function turning.read(q, rows)
  local asked, order = {}, q.order
  for i = 1, #rows do
    local fields, key = rows[i] and rows[i][2] or {}, nil
    for j = 1, #fields, 2 do
      if fields[j] == order then key = fields[j + 1] end
    end
    if rows[i] then q.keys[rows[i][1]] = key end
    if key and q.heads[key] == nil then asked[#asked + 1], q.heads[key] = 'k' .. key, false end
  end
  local heads = #asked > 0 and redis.call('HMGET', q.turns, unpack(asked)) or {}
  for i = 1, #heads do q.heads[string.sub(asked[i], 2)] = heads[i] end
end
-- Whether this job of those rows has the turn of its key, or has no key; otherwise it is recorded as waiting behind.
function turning.takes(q, entry)
  local key = q.keys[entry]
  if not key then return true end
  if q.heads[key] == nil then q.heads[key] = redis.call('HGET', q.turns, 'k' .. key) end
  if q.heads[key] == entry then return true end
  q.turns_set[#q.turns_set + 1], q.turns_set[#q.turns_set + 2] = 'e' .. entry, key
  if not q.heads[key] then
    q.heads[key] = entry
    q.turns_set[#q.turns_set + 1], q.turns_set[#q.turns_set + 2] = 'k' .. key, entry
    return true
  end
  q.places[#q.places + 1], q.places[#q.places + 2] = 0, place_behind(key, entry)
  return false
end
function turning.write(q)
  if #q.turns_set == 0 then return end
  in_parts(q.turns_set, function(...) redis.call('HSET', q.turns, ...) end)
  in_parts(q.places, function(...) redis.call('ZADD', q.behind, ...) end)
  q.turns_set, q.places, q.turned = {}, {}, true
end
-- An entry was removed by XDEL by hand: 7.0 and later remove it from the pending list, 6.2 does not.
function turning.forget(q, entry)
  redis.call('XACK', q.jobs, 'workers', entry)
  if not q.order then return end
  turning.write(q)
  forget_turns(q, {entry})
  q.heads, q.passed = {}, true
end
