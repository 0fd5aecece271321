-- feature cancellations: ids of cancelled jobs.
-- KEYS   cancels (zset)
-- Ids of cancelled jobs: `cancels`, a sorted set by the ms until which `ended` tells of each. A new job of such an id
-- removes it. The key goes with its last id; each call removes more ids whose time is over than it adds.
local cancellations = {}
-- The key, if it has ids, else false. Fails for a key of another type.
function cancellations.present(cancels) return redis.call('ZCARD', cancels) > 0 and cancels end
-- Note that jobs of these ids were cancelled just now, for *ttl* ms.
function cancellations.note(cancels, ids, ttl)
  if #ids == 0 then return end
  local now, rows = clock(), {}
  local until_when = string.format('%.0f', now + ttl)
  for _, id in ipairs(ids) do rows[#rows + 1], rows[#rows + 2] = until_when, id end
  local over = redis.call('ZRANGEBYSCORE', cancels, '-inf', string.format('%.0f', now), 'LIMIT', 0, #ids + 100)
  if #over > 0 then redis.call('ZREM', cancels, unpack(over)) end
  redis.call('ZADD', cancels, unpack(rows))
  local latest = redis.call('ZRANGE', cancels, -1, -1, 'WITHSCORES')[2]
  redis.call('PEXPIRE', cancels, string.format('%.0f', math.max(1, tonumber(latest) - now)))
end
-- Whether a job of this id was cancelled, and no other has come since.
function cancellations.has(cancels, id)
  local last = redis.call('ZSCORE', cancels, id)
  return last and tonumber(last) > clock()
end
