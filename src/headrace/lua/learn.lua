-- learn: record how children in another slot have ended, each once, and wake the runs that wait for them.
-- KEYS   wake (stream), ids (hash)
-- ARGV   home, open flag, items...
-- REPLY  1: children of runs here may still end there · 0: they have all ended
-- COST   10 us + 20 us per report
-- home: the prefix of the keys of the children's queue. open, items: as reports answered them, each an id and a report. A
-- report of a run that is gone, or of a child that has another record by now, changes nothing.
require_streams(wake)
require_hashes(steps, ids)
require_sorted_sets(asleep, afar)
local now, prefix = clock(), runs.home_of(steps)
for i = items, #ARGV - 1, 2 do -- pcall: foreign bytes stop no other report
  local report = runs.unpacked(ARGV[i + 1]) or {}
  local parent, enq, number, state, text, size = unpack(report)
  pcall(function() runs.report_child({prefix, parent, enq, number}, ARGV[i], state, text or nil, size) end)
end
if items <= #ARGV then
  redis.call('ZADD', afar, 'XX', string.format('%.0f', now), home)
elseif not open and tonumber(redis.call('ZSCORE', afar, home) or 0) < now - runs.REPORTED_MS then
  redis.call('ZREM', afar, home)
end
return redis.call('ZSCORE', afar, home) and 1 or 0
