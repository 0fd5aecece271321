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
--   stopped  (zset, 0) '<slot> <line>' for each line that waits for a slot, and '*' if the limit of the queue stopped it
--   lines    (zset, 0) '<line> <place>' of a job that waits and was not leased since its first look (consumer
--            parked:new), '<line> <place>+' of a job that came back (consumer parked:front)
-- An entry is in `held` exactly while its job is leased.
local holds = {}
function holds.lp(value) return value and #value .. ':' .. value or '-' end
function holds.place(entry)
  local ms, number = string.match(entry, '^(%d+)%-(%d+)$')
  return string.char(96 + #ms) .. ms .. string.char(96 + #number) .. number
end
function holds.entry(place)
  local ms = string.byte(place) - 96
  return string.sub(place, 2, ms + 1) .. '-' .. string.match(place, '^%d+', ms + 3)
end
-- The slot with which a member of `stopped` begins; nil for '*'.
function holds.slot_in(member)
  local key, at = string.match(member, '^(%d+):()')
  if not key then return nil end
  local value, text = string.match(member, '^(%d+):()', at + key)
  return string.sub(member, 1, text + value - 1)
end
