-- purge_dead: remove dead letters for good, the oldest first, or only the given ids.
-- KEYS   lane (string), stats (hash)
-- ARGV   call, cursor, limit count, wanted...
-- REPLY  {removed, cursor}: cursor is '' when the end was reached
-- COST   about 2 us per letter looked at, at most 1 MiB of them
-- cursor: '-' at first; jobs that die after the first call stay.
require_hashes(steps)
local listening = listeners(stats, events, 'deleted')
local chosen, gone, ids_gone = {}, 0, {}
for i = wanted, #ARGV do chosen[ARGV[i]] = true end
local page, following = page_until_now(new_budget(), dead, cursor, limit)
for i = 1, #page do
  local own = dead_letter_job(page[i])
  if wanted > #ARGV or chosen[own.id] then
    gone = gone + redis.call('XDEL', dead, page[i][1])
    runs.forget(steps, runs.of_letter(page[i][1]))
    ids_gone[#ids_gone + 1] = own.id
  end
end
if gone > 0 then redis.call('HINCRBY', stats, 'dead_trimmed', gone) end
if listening.deleted then publish(events, 'deleted', ids_gone) end
return answer({gone, following})
