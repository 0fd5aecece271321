-- beat: keep a worker alive for another timeout, by the server's clock.
-- KEYS   (none)
-- ARGV   worker, timeout int, lease, register flag, kinds...
-- REPLY  1 alive until `timeout` ms from now · 0 the worker was declared dead, or was never registered
-- COST   5 us
-- register: 1 for the first beat of a worker, which registers it. lease: ms that its leases last. kinds: with the first
-- beat, the kinds of jobs that it has handlers for; '' for all; none if unknown. The first beat, and the beat of an
-- idle worker (see `rest`), are published on `control`.
local now, deadline = clock(), tonumber(redis.call('ZSCORE', workers, worker) or 0)
whole(lease)
if deadline == 0 and not register then return 0 end
local until_when = string.format('%.0f', now + timeout)
if deadline < now or type(redis.pcall('ZADD', workers, until_when, worker)) ~= 'number' then
  -- A full server permits ZREM, and then all later writes: without beats every worker would look dead.
  redis.call('ZREM', workers, '')
  if deadline < now then redis.call('HSET', registered, worker, known_as(now, lease, kinds, redis.call('HGET', registered, worker))) end
  redis.call('ZADD', workers, until_when, worker)
end
if deadline < now or deadline % 1 > 0 then tell_holders(control, 'active') end
return 1
