-- child: start a child of a run, a job in a queue of its group. Only the present holder may do so.
-- KEYS   lane (string), jobs (stream), others...
-- ARGV   call, worker, entry, delivery int, id, enq, name, attempt int, delay, level int, fields...
-- REPLY  {1, number, id}: it is started; number: of its record; id: the child's · {0}: the lease is lost ·
--        {-1}: the run has 1,000 records · {-2}: it has 1 MiB of them · {-3}: jobs have these ids already · {-4}: it would
--        be the eleventh child below each other
-- COST   35 us
-- id, enq: as in step. others: of the queue of the child: jobs, wake, ids, delayed, bodies, stats, cancels, events, the
-- stream of its level, and links. fields: of the child, with its id. If a job has that id, the child gets another, with the
-- ms of the first enqueue behind it.
local to = {levels = {n = level, [level] = others[9]}, added = 0, enqueued = 0, vacant = true}
to.jobs, to.wake, to.ids, to.delayed, to.bodies, to.stats = unpack(others, 1, 6)
local to_links = others[10]
-- Of other keys, a command before the first write finds the type.
require_hashes(to_links)
require_streams(to.jobs)
if delay ~= '' or level > 0 then
  require_hashes(to.bodies)
  require_streams(to.wake, others[9])
  require_sorted_sets(to.delayed)
end
due_at(delay, 0)
whole(level, 0, 9)
if not held_by(jobs, worker, {entry}, {delivery})[1] then return answer({0}) end
to.cancels = cancellations.present(others[7])
local listening = listeners(to.stats, others[8], 'added')
local job, depth = {unpack(ARGV, fields)}, runs.depth_below(links, id)
if not depth then return answer({-4}) end
local function has_job(child) return redis.call('HEXISTS', to.ids, child) == 1 or is_entry_id(to, child) end
if has_job(job[4]) then
  job[4] = job[4] .. '~' .. enq
  if has_job(job[4]) then return answer({-3}) end
end
local now, run = clock(), runs.of(steps, id, enq)
run.more.children = (run.more.children or 0) + 1
local home = string.sub(to_links, 1, -6)
local number = runs.put(steps, id, run, 0, {name, 'child', now, 0, attempt, false, 0, '', false, '', 0, 0, '', home, job[4]})
if number < 0 then return answer({number}) end
redis.call('HSET', to_links, job[4], cmsgpack.pack({runs.home_of(steps), id, run.enq, number, depth}))
local child, _, first = add_job(to, now, job[4], delay, job)
count_added(to)
if first then wake_one(to.wake) end
if listening.added then publish(others[8], 'added', {child}) end
return answer({1, number, child}, nil, true)
