-- recur: declare the schedules of a worker's code, and end schedules that no live worker's code declares any more.
-- KEYS   (none)
-- ARGV   worker, set, names...
-- REPLY  {changed, ended...}: changed: 1 if this set is new here, or another set was forgotten, else 0; then the names
--        of the schedules that ended
-- COST   10 us + 1 us per worker + 2 us per schedule
-- set: a name for the schedules of the code, different for each other set; '' for no schedules. names: its schedules.
-- Schedules that were never declared in this way stay. A worker lives until it leaves, or is declared dead.
local alive, sets, gone = {}, {}, {''}
local rows = redis.call('HGETALL', recurring)
for i = 1, #rows, 2 do
  if string.sub(rows[i], 1, 1) == '=' then
    sets[string.sub(rows[i], 2)] = strings_of(rows[i + 1]) or {}
  elseif rows[i] ~= worker then
    if tonumber(redis.call('ZSCORE', workers, rows[i]) or 0) > 0 then alive[rows[i + 1]] = true
    else gone[#gone + 1] = rows[i] end
  end
end
local ours, kept, over, changed = {}, {}, {}, set ~= '' and not sets[set] and 1 or 0
for i = names, #ARGV do
  ours[#ours + 1], kept[ARGV[i]] = ARGV[i], true
end
if set ~= '' then alive[set], sets[set] = true, ours
else gone[#gone + 1] = worker end
for name, its in pairs(sets) do
  for i = 1, alive[name] and #its or 0 do kept[its[i]] = true end
end
for name, its in pairs(sets) do
  if not alive[name] then
    changed, gone[#gone + 1] = 1, '=' .. name
    for i = 1, #its do
      if not kept[its[i]] then
        redis.call('ZREM', ticks, its[i])
        if redis.call('HDEL', schedules, its[i]) == 1 then over[#over + 1] = its[i] end
      end
    end
  end
end
for i = 1, #gone do redis.call('HDEL', recurring, gone[i]) end -- a full server permits it, and then all later writes
if set ~= '' then redis.call('HSET', recurring, worker, set, '=' .. set, cmsgpack.pack(ours)) end
return {changed, unpack(over)}
