-- retry: retry jobs later: send them to the back of their level, or delay them. Only the present holder may do so.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), stats (hash)
-- ARGV   call, worker, max_attempts int, dead_limit int, items...
-- REPLY  one per job: 1 the job is retried · 2 it had no attempts left, and is dead · 0 it is no longer this worker's
-- COST   20 us + 10 us per job
-- A job that has the turn of its key keeps its place in front of the key's other jobs: it goes to the front, or for its
-- delay to the consumer `limited`, and its reason and attempts to `turns`: see tried. Items: entry, delivery count,
-- delay ('' or '+ms' or '@ms'), spend (1 an attempt, 0 none, -1 restores all attempts; followed by a blank and the traceparent of this attempt, for
-- the next one), reason (followed by the byte 255 and the traceback, to keep one; in a queue with a history by two more
-- parts, each after that byte: the class of the error, and when the attempt began, '+ms' before now or '@ms'). At most
-- 1,000 jobs. A retried job has the first 500 bytes of its reason, and 4,096 of the traceback, as fields
-- `headrace-reason` and `headrace-traceback`, until its next retry, and its attempts so far as `headrace-attempts`. The
-- job ended by itself, so it is no longer a suspect. Deliveries whose holder died spend no attempt: from now on they
-- count as releases.
local q = {
  -- @queue without asleep
  levels = known_streams(stats, levels),
}
require_hashes(ids, released, bodies, stats, turns, deaths, steps)
require_sorted_sets(leases, delayed, flows, limited, behind)
require_streams(dead, wake)
holds.check(q)
local listening = listeners(stats, events, 'retried', 'dead')
require_history(listening.history, ends, ended)
local entries, counts, dues, spends, reasons = {}, {}, {}, {}, {}
local reply, first, retried, dead_ids, why, room = {}, false, {}, {}, {}, runs.room()
local over, why_dead = {}, {}
local now, keyed = clock(), redis.call('EXISTS', turns) == 1
local watched = redis.call('EXISTS', deaths) == 1
for i = items, #ARGV, 5 do
  local at = #entries + 1
  entries[at], counts[at], dues[at], spends[at], reasons[at] = unpack(ARGV, i, i + 4)
  dues[at] = due_at(dues[at], now)
  whole(string.match(spends[at], '^%S+'), -1, 1)
end
local mine = held_by(jobs, worker, entries, counts)
for i, entry in ipairs(entries) do
  local body = mine[i] and redis.call('XRANGE', jobs, entry, entry)[1]
  reply[i] = 0
  if body then
    local spend, traced = string.match(spends[i], '^(%S+) ?(.*)$')
    local own_fields, headers = parse(body[2])
    link_attempt(headers, traced)
    tried.add(turns, entry, own_fields)
    local deliveries = tonumber(own_fields.attempt or 0) + tonumber(counts[i])
    local releases = (tonumber(redis.call('HGET', released, entry) or 0) or 0) + (spend == '0' and 1 or 0)
    local free = releases + (watched and tonumber(redis.call('HGET', deaths, entry) or 0) or 0)
    if spend == '-1' then releases, free = deliveries, deliveries end
    local id = own_fields.id or entry
    local named = redis.call('HGET', ids, id)
    local ours = not named or named == entry -- otherwise a bare XADD gave a second job this id
    own_fields.id, own_fields.attempt = id, string.format('%.0f', deliveries)
    own_fields.enq = own_fields.enq or string.match(entry, '^%d+')
    local reason = failures.set_reason(own_fields, reasons[i])
    local short = own_fields.reason or ''
    local last = max_attempts > 0 and deliveries - free >= max_attempts and spend == '1'
    local stays = keyed and not last and redis.call('HGET', turns, 'e' .. entry)
    local due = dues[i]
    -- First: then a full server permits all later writes.
    if stays then
      finish(q, {entry}, {
        to = due > 0 and 'limited' or 'parked', due = due > 0 and due, itself = true,
        released = free > 0 and string.format('=%.0f', free),
      })
    else
      depart(q, {entry}, {ids = last and {id}, what = last and DIED, told = {[id] = short}})
    end
    local ran = listening.history and runs.of_job(steps, own_fields)
      and runs.delivered(steps, id, failures.began(reasons[i], now), now)
    if listening.history and spend == '1' then
      failures.add_attempt(own_fields, reasons[i], ran and deliveries or deliveries - releases, worker, now, ran)
    end
    if last then
      if listening.history then
        over[#over + 1] = {
          id = id, attempt = string.format('%.0f', deliveries - releases), worker = worker, reason = short,
          fields = compose(own_fields, headers), run = ran and runs.kept(steps, id, room), delivery = deliveries,
        }
      end
      keep_dead(q, dead_limit, reason, worker, releases, own_fields, headers)
      reply[i], dead_ids[#dead_ids + 1], why_dead[#dead_ids + 1] = 2, id, short
    elseif stays then
      tried.keep(turns, entry, own_fields)
      if due == 0 then wake_many(wake, 1) end
      first = first or due > 0 and redis.call('ZRANK', limited, entry) == 0
      reply[i], retried[#retried + 1], why[#retried + 1] = 1, id, short
    else
      local key = ours and id or entry
      if due > 0 then
        redis.call('HSET', bodies, key, cmsgpack.pack(compose(own_fields, headers)))
        redis.call('ZADD', delayed, string.format('%.0f', due), key)
        if ours then redis.call('HSET', ids, id, 'delayed') end
        first = first or redis.call('ZRANK', delayed, key) == 0
      else
        key = append(q, compose(own_fields, headers))
        if ours then redis.call('HSET', ids, id, key) end
      end
      if free > 0 then redis.call('HSET', released, key, free) end
      reply[i], retried[#retried + 1], why[#retried + 1] = 1, id, short
    end
  end
end
if first then wake_one(wake) end
keep_ends(listening.history, ends, ended, 'dead', over)
if listening.retried then publish(events, 'retried', retried, worker, why) end
if listening.dead then publish(events, 'dead', dead_ids, worker, why_dead) end
return answer(reply)
