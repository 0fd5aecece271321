-- wait: record that a run sleeps, or waits for a signal, unless that is over. Only the present holder may do so.
-- KEYS   lane (string), jobs (stream)
-- ARGV   call, worker, entry, delivery int, id, enq, name, kind, delay, attempt int, traced
-- REPLY  {1, number, due}: it is not over; due in ms, -1 never · {2, number, value}: the signal is there · {3, number}:
--        the time has passed already; number: the number of the record · {0}: the lease is lost · {-1}: the run has 1,000
--        records · {-2}: it has 1 MiB of them
-- COST   20 us
-- id, enq: as in step. kind: sleep or wait. delay: '' never, '+ms' from now, '@ms' at a moment. traced: the traceparent of
-- this delivery, to which the one links that goes on behind it; '' for none. The run keeps its lease: see suspend.
require_hashes(steps)
if not held_by(jobs, worker, {entry}, {delivery})[1] then return answer({0}) end
local now = clock()
local moment, run = due_at(delay, now), runs.of(steps, id, enq)
local open = kind == 'wait' and run.open[name] or 0
if open > 0 then
  local there = runs.record(steps, id, open)
  if there[2] == 'signal' then
    runs.take(steps, id, run, open, there, now, attempt)
    return answer({2, open, there[6]}, nil, true)
  end
end
local over = delay ~= '' and moment == 0
local record = {name, kind, now, 0, attempt, false, over and now or moment}
if traced ~= '' then record[8] = traced end
local number = runs.put(steps, id, run, open, record, kind == 'wait' or nil)
if number < 0 then return answer({number}) end
if over then return answer({3, number}, nil, true) end
return answer({1, number, delay == '' and -1 or moment}, nil, true)
