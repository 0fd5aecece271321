-- register: register a worker under a chosen name, unless another live worker has that name.
-- KEYS   (none)
-- ARGV   worker, name, timeout int, lease, seen, decide flag, kinds...
-- REPLY  {verdict, other}: 1 registered; `other` had this name before, or '' · 0 `other` may live under this name: send
--        it as `seen` · -1 `other` lives under this name
-- COST   10 us + 1 us per worker
-- worker: `<name>.<random>`. lease: ms that its leases last. kinds: as for `beat`. seen: '' at first. decide: 1 =
-- workers in `seen` had time for a beat; a worker without a beat since then is dead. `lease` hands out its jobs, to its
-- heir first.
whole(lease)
local last_seen, others = {}, {}
for other, deadline in string.gmatch(seen, '(%S+) (%S+)') do last_seen[other] = deadline end
local rows = redis.call('ZRANGE', workers, 0, -1, 'WITHSCORES')
for i = 1, #rows, 2 do
  local other, deadline = rows[i], rows[i + 1]
  if other ~= worker and deadline ~= '0' and string.match(other, '^(.*)%.[^.]*$') == name then
    if seen ~= '' and last_seen[other] ~= deadline then return {-1, other} end
    others[#others + 1] = other .. ' ' .. deadline
  end
end
if #others > 0 and not decide then return {0, table.concat(others, ' ')} end
local now = clock()
redis.call('ZREM', workers, '') -- a full server permits it, and then all later writes
redis.call('HSET', registered, worker, known_as(now, lease, kinds))
redis.call('ZADD', workers, string.format('%.0f', now + timeout), worker)
tell_holders(control, 'active')
return {1, #others > 0 and string.match(others[#others], '^%S+') or ''}
