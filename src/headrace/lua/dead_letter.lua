-- dead_letter: take jobs out of the queue, and keep them with a reason. Only the present holder may do so.
-- KEYS   lane (string), jobs (stream), ids (hash), stats (hash), wake (stream)
-- ARGV   call, worker, dead_limit int, items...
-- REPLY  one per job: 1 dead now · 0 not this worker's any more
-- COST   15 us + 10 us per job
-- Items: entry, delivery count, reason (followed by more, as in retry). At most 1,000 jobs. A dead entry's fields: `reason`, `worker`, `released` (deliveries that spent no attempt), then the job's, with
-- `attempt` the number of all deliveries.
local q = {
  -- @queue without asleep
}
require_hashes(ids, released, stats, turns, steps)
require_sorted_sets(leases, flows, limited, behind)
require_streams(dead, wake)
holds.check(q)
local listening = listeners(stats, events, 'dead')
require_history(listening.history, ends, ended)
local entries, counts, reasons, reply, dead_ids, why, over = {}, {}, {}, {}, {}, {}, {}
local now, room = clock(), runs.room()
for i = items, #ARGV, 3 do
  entries[#entries + 1], counts[#counts + 1], reasons[#reasons + 1] = unpack(ARGV, i, i + 2)
end
local mine = held_by(jobs, worker, entries, counts)
for i, entry in ipairs(entries) do
  local body = mine[i] and redis.call('XRANGE', jobs, entry, entry)[1]
  reply[i] = 0
  if body then
    local fields, headers = parse(body[2])
    local releases = (tonumber(redis.call('HGET', released, entry) or 0) or 0)
    tried.add(turns, entry, fields)
    depart(q, {entry}, {ids = {fields.id}, what = DIED, told = {[fields.id or ''] = string.match(reasons[i], '^[^\255]*')}})
    fields.attempt = string.format('%.0f', tonumber(fields.attempt or 0) + tonumber(counts[i]))
    fields.id, fields.enq = fields.id or entry, fields.enq or string.match(entry, '^%d+')
    local reason = failures.set_reason(fields, reasons[i])
    reply[i], dead_ids[#dead_ids + 1], why[#dead_ids + 1] = 1, fields.id, fields.reason or ''
    if listening.history then
      local attempt = string.format('%.0f', math.max(1, fields.attempt - releases))
      local ran = runs.of_job(steps, fields) and runs.delivered(steps, fields.id, failures.began(reasons[i], now), now)
      failures.add_attempt(fields, reasons[i], ran and fields.attempt or attempt, worker, now, ran)
      over[#over + 1] = {
        id = fields.id, attempt = attempt, worker = worker, reason = fields.reason, fields = compose(fields, headers),
        run = ran and runs.kept(steps, fields.id, room), delivery = fields.attempt,
      }
    end
    keep_dead(q, dead_limit, reason, worker, releases, fields, headers)
  end
end
keep_ends(listening.history, ends, ended, 'dead', over)
if listening.dead then publish(events, 'dead', dead_ids, worker, why) end
return answer(reply)
