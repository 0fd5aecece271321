-- feature limits: so many jobs at a time, of all or of a key.
-- KEYS   held (hash), slots (zset), settled (list), stopped (zset)
-- HOOKS  finishes: holds.give_back (held), forgets: holds.give_back (held)
-- The slots of leased jobs, in a queue with terms: see docs/explanation/fairness.md. Header of all its keys:
--   lp(x)    '<bytes of x>:<x>', or '-' for a job without the header; of a value only the first 500 bytes count.
--   line     '<level>', lp of each value of the path of `fair`, lp of each further key of limits and rates.
--   node     '<level>', lp of each value of the path, or of the first: a value, an organisation; '<level>' is the root.
--   place    of an entry: both numbers, each after a letter for its number of digits ('a' 1), so that bytes order them.
--   slot     lp(key) .. lp(value): of a limit with a key. Only jobs that have the header take one.
--   held     (hash) entry -> '<ms since> <charge> <number> <bytes of line>:<line><slots>': ms with three decimals; charge
--            in whole us of run time, after '=' if it is the job's cost, and is not corrected; number: the jobs of its
--            batch, which share the time; slots: lp(slot) for each. Jobs of one line in one call have equal texts.
--   slots    (zset, 0) '<slot> <place>' for each held entry and each of its slots
--   settled  (list) '@<ms when>', then the texts of the held entries that ended then; the next lease_fair applies them
--   stopped  (zset, 0) '<slot> <level><16 digits><line>' for each line that waits for a slot, in order, and '*' if the limit of the queue stopped it
--   lines    (zset, 0) '<line> <place>' of a waiting job; with '+' behind it if the job came back (it is with the consumer
--            parked:front; others are with parked:new), and then '=<cost>' if the job has a cost
-- An entry is in `held` exactly while its job is leased.
local holds = {}
function holds.lp(value) return value and #value .. ':' .. value or '-' end
-- The cost of a job as its place in a line has it.
function holds.cost(cost) return cost > 0 and string.format('=%.10g', cost) or '' end
function holds.place(entry)
  local ms, number = string.match(entry, '^(%d+)%-(%d+)$')
  return string.char(96 + #ms) .. ms .. string.char(96 + #number) .. number
end
-- Whether entry ID *a* is after *b*. Lua's numbers do not hold 64 bits.
function holds.is_after(a, b) return holds.place(a) > holds.place(b) end
-- The entry of the place that is in a text from *at* on, and where the place ends.
function holds.entry_at(text, at)
  local number = at + string.byte(text, at) - 95
  local after = number + string.byte(text, number) - 95
  return string.sub(text, at + 1, number - 1) .. '-' .. string.sub(text, number + 1, after - 1), after
end
function holds.entry(place)
  local entry = holds.entry_at(place, 1)
  return entry
end
-- The slot with which a member of `stopped` begins; nil for '*'.
function holds.slot_in(member)
  local key, at = string.match(member, '^(%d+):()')
  if not key then return nil end
  local value, text = string.match(member, '^(%d+):()', at + key)
  return string.sub(member, 1, text + value - 1)
end
-- While there are lines, `leases` has a member that never comes: then workers of older versions, which do not know the
-- consumers of lines, do not take their jobs by XAUTOCLAIM.
function holds.shield(q) redis.call('ZADD', q.leases, 'inf', 'lines') end
function holds.unshield(q) redis.call('ZREM', q.leases, 'lines') end
-- Check the types of its keys before the first write: one command where no job is held. q: held, slots, settled, stopped.
function holds.check(q)
  q.holding = redis.call('EXISTS', q.held) == 1
  if not q.holding then return end
  require_hashes(q.held)
  require_sorted_sets(q.slots, q.stopped)
  require_lists(q.settled)
end
-- The slots in the text of a held entry.
function holds.slots(text)
  local at, found = select(2, string.find(text, '^%S+ %S+ %d+ %d+:')), {}
  if not at then return found end -- foreign bytes
  at = at + tonumber(string.match(text, '^%S+ %S+ %d+ (%d+)')) + 1
  while true do
    local size = string.match(text, '^%d+', at)
    if not size then return found end
    found[#found + 1] = string.sub(text, at + #size + 1, at + #size + tonumber(size))
    at = at + #size + 1 + tonumber(size)
  end
end
-- The leases of *entries*, at most 1,000, have ended: their slots are free, and the next lease_fair learns how long they
-- lasted. An entry that is not held is passed over. q: also wake, for stopped lines, and `texts` of the entries, if known.
function holds.give_back(q, entries)
  if q.holding == nil then q.holding = redis.call('EXISTS', q.held) == 1 end
  if not q.holding or #entries == 0 then return end
  local texts, limited = q.texts or redis.call('HMGET', q.held, unpack(entries)), redis.call('EXISTS', q.slots, q.stopped) > 0
  local names, ended, members, of = {}, {}, {}, {}
  for i = 1, #entries do
    local text = texts[i]
    if text then
      names[#names + 1], ended[#ended + 1] = entries[i], text
      of[text] = of[text] or limited and holds.slots(text) or {}
      local place = #of[text] > 0 and ' ' .. holds.place(entries[i])
      for j = 1, #of[text] do members[#members + 1] = of[text][j] .. place end
    end
  end
  if #names == 0 then return end
  redis.call('HDEL', q.held, unpack(names))
  for i = 1, #members, 4000 do redis.call('ZREM', q.slots, unpack(members, i, math.min(#members, i + 3999))) end
  local time = redis.call('TIME')
  redis.call('RPUSH', q.settled, string.format('@%.3f', time[1] * 1000 + time[2] / 1000), unpack(ended))
  if limited and redis.call('EXISTS', q.stopped) == 1 then wake_one(q.wake) end
end
