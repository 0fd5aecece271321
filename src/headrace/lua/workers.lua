-- workers: list the workers of a queue: since when, until when, and how many jobs each has leased.
-- KEYS   jobs (stream), workers (zset), registered (hash)
-- ARGV   (none)
-- REPLY  {now, {name, deadline, since, leased}...}: times in ms of the server's clock
-- COST   10 us + 2 us per worker
-- @include clock
local leased, summary = {}, redis.pcall('XPENDING', jobs, 'workers')
if not summary.err then
  for _, consumer in ipairs(summary[4] or {}) do leased[consumer[1]] = tonumber(consumer[2]) end
end
local reply, rows = {clock()}, redis.call('ZRANGE', workers, 0, -1, 'WITHSCORES')
for i = 1, #rows, 2 do
  local since = string.match(redis.call('HGET', registered, rows[i]) or '', '^%d+')
  reply[#reply + 1] = {rows[i], tonumber(rows[i + 1]), tonumber(since or 0), leased[rows[i]] or 0}
end
return reply
