-- feature cancellations: ids of cancelled jobs.
-- KEYS   cancels (zset)
-- Ids of cancelled jobs: `cancels`, a sorted set by the ms until which `ended` tells of each. A new job of such an id
-- removes it. The key goes with its last id; each call removes more ids whose time is over than it adds.
local cancellations = {}
-- The key, if it has ids, else false. Fails for a key of another type.
function cancellations.present(cancels) return redis.call('ZCARD', cancels) > 0 and cancels end
-- Note that jobs of these ids were cancelled just now, for *ttl* ms.
function cancellations.note(cancels, ids, ttl)
  local now = clock()
  keep_until(cancels, ids, now + ttl, now)
end
-- Whether a job of this id was cancelled, and no other has come since.
function cancellations.has(cancels, id)
  local last = redis.call('ZSCORE', cancels, id)
  return last and tonumber(last) > clock()
end
