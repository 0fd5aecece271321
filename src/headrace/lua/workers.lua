-- workers: list the workers of a queue, each with its start, its deadline, its number of leased jobs, its facts and its kinds.
-- KEYS   jobs (stream), workers (zset), registered (hash), facts (hash)
-- ARGV   (none)
-- REPLY  {now, {name, deadline, since, leased, facts, request, kinds}...}: times in ms of the server's clock · facts: of
--        `report`, or '' · request: of `ask_worker`, or '' · kinds: a list, as of the registration; left out if the
--        worker gave none
-- COST   10 us + 3 us per worker
-- @include clock
-- @include strings_of
local leased, summary = {}, redis.pcall('XPENDING', jobs, 'workers')
if not summary.err then
  for _, consumer in ipairs(summary[4] or {}) do leased[consumer[1]] = tonumber(consumer[2]) end
end
local reply, rows = {clock()}, redis.call('ZRANGE', workers, 0, -1, 'WITHSCORES')
for i = 1, #rows, 2 do
  local kept = redis.call('HGET', registered, rows[i]) or ''
  local since, kinds = string.match(kept, '^%d+'), strings_of(string.match(kept, '^%d+ %d+ (.*)$'))
  local told = redis.call('HMGET', facts, rows[i], '?' .. rows[i])
  reply[#reply + 1] = {
    rows[i], tonumber(rows[i + 1]), tonumber(since or 0), leased[rows[i]] or 0, told[1] or '', told[2] or '', kinds,
  }
end
return reply
