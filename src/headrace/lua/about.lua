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
local reply = {
  clock(), redis.call('HEXISTS', stats, 'paused'), deepest_level(stats),
  tonumber(redis.call('HGET', stats, 'declaration') or 0) or 0,
}
for _, word in ipairs(strings_of(redis.call('HGET', stats, 'declared')) or {}) do reply[#reply + 1] = word end
for _, name in ipairs({'terms', 'concurrency'}) do
  local value = redis.call('HGET', stats, name)
  if value then reply[#reply + 1], reply[#reply + 2] = name, value end
end
return reply
