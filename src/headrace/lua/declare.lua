-- declare: declare how a queue is meant to be used, and return where others declared it differently.
-- KEYS   stats (hash), trends (string)
-- ARGV   serving flag, items...
-- REPLY  {version, name, value, name, value, ...}: the options that others declared differently, in their words
-- COST   5 us
-- Items: pairs of an option's name and its value in words, at most 16. A new option is kept, and changes the version.
-- So does a different option of a worker (`serving`), which counts from then on. All scripts read `history` (the number
-- of ends to keep) and `history_ttl` (seconds) from `history` of the stats, and `trends` (yes or no) from `trends`,
-- which has the time of the last record. Only a worker can raise the number of levels, `priorities`: no producer serves
-- them.
local kept, reply, changed, deepest = declared.read(stats), {}, false, deepest_level(stats)
local has_terms = redis.call('HEXISTS', stats, 'terms') == 1
for i = items, math.min(#ARGV - 1, items + 30), 2 do
  local name, value = ARGV[i], string.sub(ARGV[i + 1], 1, 200)
  local before = kept[name]
  local counts = serving and not (has_terms and name == 'rate') -- the rates of a queue with terms are declared with these
  if before and before ~= value and (counts or not serving) then
    reply[#reply + 1], reply[#reply + 2] = name, before
  end
  local unserved = not before and name == 'priorities' and (tonumber(value) or 1) > deepest + 1
  if before ~= value and (counts or not serving and not before and not unserved) then kept[name], changed = value, true end
end
redis.call('HDEL', stats, '') -- a full server permits it, and then all later writes
if changed then declared.write(stats, kept) end
local most = tonumber(kept.history)
if most and most > 0 then
  redis.call('HSET', stats, 'history', string.format('%.0f %.0f', most, math.ceil(1000 * (tonumber(kept.history_ttl) or 604800))))
elseif most then
  redis.call('HDEL', stats, 'history')
  redis.call('UNLINK', ends, ended)
end
if kept.trends == 'yes' then
  redis.call('HSETNX', stats, 'trends', 0)
elseif kept.trends then
  redis.call('HDEL', stats, 'trends')
  redis.call('UNLINK', trends)
end
table.insert(reply, 1, declared.version(stats))
return reply
