-- cancel: remove a job by id, waiting, parked, leased, delayed, blocked or suspended. Its holder finds its lease lost.
-- KEYS   lane (string), jobs (stream), ids (hash), leases (zset), released (hash), delayed (zset), bodies (hash),
--        blocked (hash), stats (hash), control (channel), events (channel), flows (zset), limited (zset), ends (hash),
--        ended (zset), wake (stream), turns (hash), behind (zset), asleep (zset), steps (hash), held (hash),
--        slots (zset), settled (list), stopped (zset), levels...
-- ARGV   call, id
-- REPLY  1 cancelled · 0 no such job
-- COST   10 us
-- @include held
-- @include keep_ends
-- @include levels
-- @include marks
-- @include publish
-- @include record
-- @include remove_by_id
-- @include require_types
-- @include tell_holders
local known = recorded()
if known then return known end
level_streams(stats, levels)
require_streams(jobs, wake)
require_hashes(ids, released, bodies, blocked, turns, steps)
require_sorted_sets(leases, delayed, flows, limited, behind, asleep)
local heard = listeners(stats, events, 'cancelled')
require_history(heard.history, ends, ended)
local q = {
  jobs = jobs, ids = ids, leases = leases, released = released, delayed = delayed, bodies = bodies, blocked = blocked,
  stats = stats, limited = limited, flows = flows, levels = levels, wake = wake, turns = turns, behind = behind,
  asleep = asleep, steps = steps, held = held, slots = slots, settled = settled, stopped = stopped,
}
holds.check(q)
local gone, leased = remove_by_id(q, id)
if leased then tell_holders(control, leased) end
if gone > 0 then mark(flows, id, REMOVED) end
if heard.history and gone == 1 then keep_ends(heard.history, ends, ended, 'cancelled', {id}, {}) end
if heard.cancelled and gone == 1 then publish(events, 'cancelled', {id}) end
return answer(gone)
