-- expire: end leases now, as if their time were over. Their jobs go to the front, with the attempt spent.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), stats (hash)
-- ARGV   call, cursor, limit count, wanted...
-- REPLY  {moved, cursor}: cursor '' when that was all, '-' from the start
-- COST   1.5 us per job moved + 0.5 us per pending entry looked at, at most `limit`; with levels, or listeners, at most
--        1 MiB of jobs
-- cursor: '-' at first; leases of jobs that are handed out for the first time after the first call go on.
-- wanted: ids of the jobs, at most 1,000; none for all leases. Their holders are notified.
local q = {
  -- @queue without released, limited
  levels = {}, -- jobs that wait at another level are not leased
}
require_streams(jobs, wake)
require_hashes(ids, deaths)
require_sorted_sets(leases)
holds.check(q)
local listening = listeners(stats, events, 'reclaimed')
local rows, next_cursor, last = {}, '', nil
if wanted > #ARGV then
  local from, upto = string.match(cursor, '^(%S+) (%S+)$')
  last = upto or pending_rows(jobs, 'workers')[3]
  rows = last and redis.call('XPENDING', jobs, 'workers', from or cursor, last, limit) or {}
  if #rows == limit then next_cursor = '(' .. rows[#rows][1] .. ' ' .. last end
end
local budget, number_of = new_budget(), {}
for i = wanted - 1 + (wanted <= #ARGV and tonumber(cursor) or 1), #ARGV do
  if fitting(budget, 1) == 0 then
    next_cursor = string.format('%.0f', i - wanted + 1)
    break
  end
  local entry = redis.call('HGET', ids, ARGV[i])
  if not entry then
    local is_one, fields = is_entry_id(q, ARGV[i])
    if fields then weigh(budget, fields) end
    entry = is_one and ARGV[i]
  end
  local there = entry and entry ~= 'delayed' and entry ~= 'blocked'
  local row = there and redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1)[1]
  if row then rows[#rows + 1], number_of[entry] = row, string.format('%.0f', i - wanted + 1) end
end
local leased, expired = {}, {}
for i = 1, #rows do
  if not is_reserved(rows[i][2]) then leased[#leased + 1] = rows[i][1] end
end
for i = 1, #leased do expired[i] = leased[i] end
local ids_expired = finish(q, expired, {budget = new_budget(), listening = listening.reclaimed})
if #expired < #leased then
  next_cursor = number_of[leased[#expired + 1]] or '(' .. expired[#expired] .. ' ' .. last
end
tell_holders(control, table.concat(expired, ' '))
if listening.reclaimed then publish(events, 'reclaimed', ids_expired) end
wake_many(wake, #expired)
return answer({#expired, next_cursor})
