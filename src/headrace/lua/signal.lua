-- signal: send data to a run that waits for it, or will.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), stats (hash)
-- ARGV   call, id, name, by, value...
-- REPLY  3 the run waited for it, and goes on · 2 it is kept for a later wait · 1 the run has one of this name, which
--        stays · 0 there is no such job, or its wait has timed out · -1 the run has 1,000 records · -2 it has 1 MiB of
--        them
-- COST   25 us
-- by: the name of its sender, for the eye. value: left out if there is none. A dead job gets no signals.
local q = {
  -- @queue
  levels = level_streams(stats, levels),
}
require_hashes(ids, bodies, blocked, steps)
require_sorted_sets(asleep)
require_streams(wake)
-- 1. The job, and when it was enqueued first.
local entry, fields = job_by_id(q, id)
if not fields then return answer(0) end
local enq = parse(fields).enq or string.match(entry, '^%d+') or ''
-- 2. Its wait, if it has one, or the signal is kept.
local run, now = runs.of(steps, id, enq), clock()
local open, sent = run.open[name], ARGV[value] or false
if open then
  local record = runs.record(steps, id, open)
  if record[2] == 'signal' then return answer(1) end
  if record[7] > 0 and record[7] <= now then return answer(0) end
  runs.fill(record)
  record[4], record[6] = now, sent
  record[10], record[11] = by, now
  local answered = runs.put(steps, id, run, open, record, false)
  if answered < 0 then return answer(answered) end
  if not redis.call('ZSCORE', asleep, entry) then return answer(2, nil, true) end
  redis.call('ZADD', asleep, string.format('%.0f', now), entry)
  wake_one(wake)
  return answer(3, nil, true)
end
for _, record in ipairs(runs.records(steps, id, run)) do
  if record[1] == name and record[2] == 'wait' then return answer(1) end
end
local answered = runs.put(steps, id, run, 0, {name, 'signal', now, 0, 0, sent, 0, '', false, by, now}, true)
return answer(answered < 0 and answered or 2)
