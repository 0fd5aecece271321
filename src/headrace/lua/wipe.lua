-- wipe: remove the remains of a queue in a shard that has left the table, except its seal.
-- KEYS   jobs (stream), wake (stream), ids (hash), stats (hash), taken (zset), gate (stream), trends (string)
-- ARGV   (none)
-- REPLY  1 removed · 0 the queue is not sealed, or has jobs or live workers: nothing was changed
-- COST   20 us
level_streams(stats, levels)
local left = redis.call('XLEN', jobs) + redis.call('ZCARD', delayed) + redis.call('HLEN', blocked) + redis.call('XLEN', dead)
left = left + redis.call('HLEN', schedules) + redis.call('HLEN', outbox)
left = left + redis.call('ZCOUNT', workers, string.format('%.0f', clock()), '+inf')
for _, stream in ipairs(levels) do left = left + redis.call('XLEN', stream) end
if left > 0 or redis.call('HEXISTS', stats, 'shards') == 0 then return 0 end
for _, stream in ipairs(levels) do redis.call('UNLINK', stream) end
redis.call(
  'UNLINK', jobs, wake, ids, leases, released, delayed, bodies, blocked, schedules, ticks, dead, limited, rates, flows,
  ends, ended, recurring, taken, gate, trends, tallies, workers, registered, outbox, outdue, closing,
  handed, turns, behind, deaths, asleep, steps, held, slots, settled, stopped,
  terms, shares, lines, ready, resting, busy, facts, cancels, pinned, links, reported, afar)
for _, field in ipairs(redis.call('HKEYS', stats)) do
  if field ~= 'shards' then redis.call('HDEL', stats, field) end
end
return 1
