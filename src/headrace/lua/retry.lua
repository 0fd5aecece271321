-- retry: try jobs again later: to the back of their level, or after a delay. Only the present holder may.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), leases (zset), released (hash), delayed (zset), bodies (hash), dead (stream), stats (hash), events (channel), flows (zset), levels...
-- ARGV   call, worker, max_attempts, dead_limit, items...
-- REPLY  one per job: 1 goes round again · 2 it had no attempts left and is dead · 0 not this worker's any more
-- COST   20 us + 10 us per job
-- Items: entry, delivery count, delay ('' or '+ms' or '@ms'), spend (1 an attempt, 0 none, -1 gives back all
-- that were spent; behind it, after a blank, the traceparent of this attempt, for the next one), reason. At most
-- 1,000 jobs.
-- @include record
-- @include typed
-- @include clock
-- @include own
-- @include fields
-- @include levels
-- @include due
-- @include attempted
-- @include bury
-- @include ring
-- @include tell
local lane, jobs, wake, ids, leases, released = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local delayed, bodies, dead, stats, events, flows = KEYS[7], KEYS[8], KEYS[9], KEYS[10], KEYS[11], KEYS[12]
local worker, max_attempts, dead_limit = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4])
local known = recorded()
if known then return known end
local q = {jobs = jobs, wake = wake, stats = stats, levels = behind(stats, 13)}
typed('HLEN', ids, released, bodies, stats)
typed('ZCARD', leases, delayed, flows)
typed('XLEN', dead, wake)
local heard = ears(stats, events, 'retried', 'dead')
local entries, counts, reply, first, retried, buried = {}, {}, {}, false, {}, {}
for i = 5, #ARGV, 5 do entries[#entries + 1], counts[#counts + 1] = ARGV[i], ARGV[i + 1] end
local mine, now = own(jobs, worker, entries, counts), clock()
for i, entry in ipairs(entries) do
  local body = mine[i] and redis.call('XRANGE', jobs, entry, entry)[1]
  reply[i] = 0
  if body then
    local at = 5 * i + 2
    local delay, reason = ARGV[at], ARGV[at + 2]
    local spend, traced = string.match(ARGV[at + 1], '^(%S+) ?(.*)$')
    local own_fields, headers = parse(body[2])
    attempted(headers, traced)
    local deliveries = tonumber(own_fields.attempt or 0) + tonumber(counts[i])
    local releases = tonumber(redis.call('HGET', released, entry) or 0) + (spend == '0' and 1 or 0)
    if spend == '-1' then releases = deliveries end
    local id = own_fields.id or entry
    local registered = redis.call('HGET', ids, id)
    local ours = not registered or registered == entry -- or else a bare XADD gave a second job this id
    -- Freed first, so that a full server permits the rest.
    redis.call('XDEL', jobs, entry)
    redis.call('XACK', jobs, 'workers', entry)
    redis.call('ZREM', leases, entry)
    redis.call('HDEL', released, entry)
    own_fields.id, own_fields.attempt = id, string.format('%.0f', deliveries)
    own_fields.enq = own_fields.enq or string.match(entry, '^%d+')
    if max_attempts > 0 and deliveries - releases >= max_attempts and spend == '1' then
      if registered == entry then
        redis.call('HDEL', ids, id)
        redis.call('ZADD', flows, 'XX', 2, id)
      end
      bury(dead, stats, dead_limit, reason, worker, releases, compose(own_fields, headers))
      reply[i], buried[#buried + 1] = 2, id
    else
      local due, key = due_at(delay, now), ours and id or entry
      if due > 0 then
        redis.call('HSET', bodies, key, cmsgpack.pack(compose(own_fields, headers)))
        redis.call('ZADD', delayed, string.format('%.0f', due), key)
        if ours then redis.call('HSET', ids, id, 'delayed') end
        first = first or redis.call('ZRANK', delayed, key) == 0
      else
        key = append(q, compose(own_fields, headers))
        if ours then redis.call('HSET', ids, id, key) end
      end
      if releases > 0 then redis.call('HSET', released, key, releases) end
      reply[i], retried[#retried + 1] = 1, id
    end
  end
end
if first then ring(wake) end
if heard.retried then tell(events, 'retried', retried, worker) end
if heard.dead then tell(events, 'dead', buried, worker) end
return answer(reply)
