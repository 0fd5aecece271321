-- child_away: record a child of a run that is to be started in another slot, by adopt. Only the present holder may do so.
-- KEYS   lane (string), jobs (stream)
-- ARGV   call, worker, entry, delivery int, id, enq, name, attempt int, number int, home, child
-- REPLY  {1, number, depth}: it is recorded; number: of its record; depth: how many runs are above it · {0}, {-1}, {-2}
--        and {-4}: as of child
-- COST   20 us
-- id, enq: as in step. home: the prefix of the keys of the child's queue. child: its id. number: 0, or of the record whose
-- child is to have another home: the first one has refused it.
require_hashes(steps, links)
require_sorted_sets(afar)
if not held_by(jobs, worker, {entry}, {delivery})[1] then return answer({0}) end
local depth = runs.depth_below(links, id)
if not depth then return answer({-4}) end
local now, run = clock(), runs.of(steps, id, enq)
local record = {name, 'child', now, 0, attempt, false, 0, '', false, '', 0, 0, '', home, child, depth}
if number == 0 then
  run.more.children = (run.more.children or 0) + 1
  run.more.away = true
end
number = runs.put(steps, id, run, number, record)
if number < 0 then return answer({number}) end
redis.call('ZADD', afar, string.format('%.0f', now), home)
return answer({1, number, depth}, nil, true)
