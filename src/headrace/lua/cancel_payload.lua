-- cancel_payload: remove the jobs of one payload, one page of the queue at a time.
-- KEYS   lane (string), jobs (stream), ids (hash), stats (hash), wake (stream)
-- ARGV   call, payload, place, cursor, limit count, ttl int
-- REPLY  {cancelled, place, cursor, prefix, id, ...}: place 'jobs', 'level:<n>' or 'delayed', with the cursor to go on
--        from; '' when done · the open children of these jobs, as in cancel
-- COST   O(limit): about 1 us per job looked at, at most 1 MiB of them
-- Jobs that come to a stream after the request for its first page stay. ttl: as in cancel. A page ends early once it has
-- read 256 KiB of the records of runs with children.
local q = {
  -- @queue
  levels = level_streams(stats, levels), removed_as = 'cancelled',
}
require_streams(jobs, wake)
require_hashes(ids, released, bodies, turns, steps)
require_sorted_sets(leases, delayed, flows, limited, behind, asleep, cancels)
holds.check(q)
local listening = listeners(stats, events, 'cancelled')
require_history(listening.history, ends, ended)
q.traces = listening.history and runs.room()
local reply, room = {0, '', ''}, {left = 262144} -- the children follow
local function end_children(id)
  for _, part in ipairs(runs.open_children(steps, id, room)) do reply[#reply + 1] = part end
end
local gone, lost, ids_gone, over, budget = 0, {}, {}, {}, new_budget()
local level = place == 'jobs' and 0 or tonumber(string.match(place, '^level:(%d)$'))
if level and level > levels.n then error('ARGUMENT ' .. place .. ': no such level', 0) end
if level then
  local stream = levels[level] or jobs
  local page, following = page_until_now(budget, stream, cursor, limit)
  for i = 1, #page do
    local entry, own = page[i][1], parse(page[i][2])
    if own.data == payload and room.left <= 0 then
      following = '(' .. page[i - 1][1] .. ' ' .. (string.match(following, ' (%S+)$') or page[#page][1])
      break
    elseif own.data == payload then
      end_children(own.id or entry)
      if level > 0 then entry = entry .. '.' .. level end
      local fields = level > 0 and prioritised(page[i][2], level) or page[i][2]
      if listening.history then fields = tried.fields(turns, entry, fields, budget) end
      local removed, leased = depart(q, {entry}, {ids = {own.id}, what = REMOVED})
      gone, lost[#lost + 1] = gone + removed, leased and entry or nil
      ids_gone[#ids_gone + 1] = own.id or entry
      over[#ids_gone] = {id = own.id or entry, fields = fields, entry = entry}
    end
  end
  if following ~= '' then
    cursor = following
  elseif level < levels.n then
    place, cursor = 'level:' .. level + 1, '-'
  else
    place, cursor = 'delayed', '0'
  end
else
  local again = cursor
  cursor = scanned(budget, bodies, cursor, limit, function(id, value)
    local body = value or value_of(budget, bodies, id)
    if body and room.left > 0 and parse(stored(body)).data == payload then
      end_children(id)
      ids_gone[#ids_gone + 1] = id
      over[#ids_gone] = {id = id, fields = stored(body)}
      gone = gone + depart_delayed(q, {id}, REMOVED)
    end
  end)
  if room.left <= 0 then cursor = again elseif cursor == '0' then place = '' end
  if place == '' then tidy_lines(q, 0) end
end
if gone > 0 then redis.call('HINCRBY', stats, 'cancelled', gone) end
cancellations.note(cancels, ids_gone, ttl)
keep_ends(listening.history, ends, ended, 'cancelled', runs.traced(q, over))
tell_holders(control, table.concat(lost, ' '))
if listening.cancelled then publish(events, 'cancelled', ids_gone) end
reply[1], reply[2], reply[3] = gone, place, cursor
return answer(reply)
