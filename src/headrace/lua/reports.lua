-- reports: list how children of runs in another slot have ended, and forget the reports of some that their parents have.
-- KEYS   others...
-- ARGV   limit count, gone...
-- REPLY  {open, id, report, ...}: open 1: there are children, of these or of other parents, that have not ended
-- COST   10 us + 1 us per report, at most 1 MiB of them
-- others: the one key of the reports, which names the parents' queue: see children. gone: ids of children. They stay
-- taken for ten minutes: a parent that was asked before may start a child once more.
local reports = others[1]
require_hashes(links, reports)
require_sorted_sets(reported)
if gone <= #ARGV then
  local known = {unpack(ARGV, gone)}
  redis.call('HDEL', reports, unpack(known))
  runs.note_reported(reported, known, runs.REPORTED_MS)
end
local reply, budget = {redis.call('EXISTS', links)}, new_budget()
for _, id in ipairs(redis.call('HRANDFIELD', reports, limit)) do
  local report = value_of(budget, reports, id)
  if not report then break end
  reply[#reply + 1], reply[#reply + 2] = id, report
end
return reply
