-- workers: list the workers of a queue, each with its start, its deadline, its number of leased jobs and its kinds.
-- KEYS   jobs (stream), workers (zset), registered (hash)
-- ARGV   (none)
-- REPLY  {now, {name, deadline, since, leased, kinds}...}: times in ms of the server's clock · kinds: a list, as of the
--        registration; left out if the worker gave none
-- COST   10 us + 2 us per worker
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
  reply[#reply + 1] = {rows[i], tonumber(rows[i + 1]), tonumber(since or 0), leased[rows[i]] or 0, kinds}
end
return reply
