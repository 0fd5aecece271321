-- reschedule: bring a delayed job forward, or push it back.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), stats (hash)
-- ARGV   call, id, delay
-- REPLY  1 done · 0 no delayed job has that id
-- COST   10 us
-- A job that a rate limit holds back counts as delayed, too: it goes to the back, or gets this delay, and the limit
-- decides again at its lease. delay: '+ms' from now, '@ms' at a moment; '', or one that has passed, sends the job to
-- the back of the queue now.
local q = {
  -- @queue without asleep, flows, steps
  levels = level_streams(stats, levels),
}
require_streams(jobs, wake)
require_hashes(ids, released, bodies, turns)
require_sorted_sets(leases, limited, behind)
holds.check(q)
local listening = listeners(stats, events, 'promoted')
local due = due_at(delay, clock())
-- A job that a limit holds back leaves its entry, and becomes a delayed job. Memory is freed first: then a full server
-- permits all later writes.
local function take_limited()
  local entry = redis.call('HGET', ids, id) or is_entry_id(q, id) and id
  local row = entry and redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1)[1]
  local body = row and row[2] == 'limited' and redis.call('XRANGE', jobs, entry, entry)[1]
  if not body then return false end
  local own, headers = parse(body[2])
  local spent, releases = tonumber(own.attempt or 0) + row[4], redis.call('HGET', released, entry)
  tried.add(turns, entry, own)
  depart(q, {entry}, {})
  own.id, own.attempt = id, spent > 0 and string.format('%.0f', spent) or nil
  own.enq = own.enq or string.match(entry, '^%d+')
  redis.call('HSET', bodies, id, cmsgpack.pack(compose(own, headers)))
  redis.call('HSET', ids, id, 'delayed')
  if releases then redis.call('HSET', released, id, releases) end
  return true
end
if redis.call('ZREM', delayed, id) == 0 and not take_limited() then return answer(0) end
if due > 0 then
  redis.call('ZADD', delayed, string.format('%.0f', due), id)
  if redis.call('ZRANK', delayed, id) == 0 then wake_one(wake) end
else
  promote_these(q, {id})
  if listening.promoted then publish(events, 'promoted', {id}) end
end
return answer(1)
