-- about: read the facts about a queue as a whole: the time, whether it is paused, its levels, its declaration.
-- KEYS   stats (hash)
-- ARGV   (none)
-- REPLY  {now, paused, levels, declaration, name, value, name, value, ...}: now ms · paused 0 or 1 · levels behind the
--        first · declaration: the number of the valid declaration, or 0 · the declared options, in the words of
--        `declare`, and if it has them `terms`: the structure of the queue's terms, `concurrency`: of `set_concurrency`
-- COST   5 us
-- @include clock
-- @include deepest
-- @include strings_of
local kept = redis.call('HMGET', stats, 'paused', 'levels', 'declaration', 'declared', 'terms', 'concurrency')
local said = strings_of(kept[4]) or {}
local reply = {clock(), kept[1] and 1 or 0, deepest_of(kept[2], said), tonumber(kept[3] or 0) or 0}
for _, word in ipairs(said) do reply[#reply + 1] = word end
for at, name in ipairs({'terms', 'concurrency'}) do
  if kept[at + 4] then reply[#reply + 1], reply[#reply + 2] = name, kept[at + 4] end
end
return reply
