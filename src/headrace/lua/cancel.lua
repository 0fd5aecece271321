-- cancel: remove a job by id, waiting, parked, leased, delayed, blocked or suspended. Its holder finds its lease lost.
-- KEYS   lane (string), jobs (stream), ids (hash), stats (hash), wake (stream)
-- ARGV   call, id, ttl int
-- REPLY  1 cancelled · {1, prefix, id, ...}: the same, with its open children: the prefix of the keys of each one's queue,
--        and its id · 0 no such job
-- COST   10 us
-- ttl: ms for which `ended` says of its id that it was cancelled, unless a new job takes it.
level_streams(stats, levels)
require_streams(jobs, wake)
require_hashes(ids, released, bodies, blocked, turns, steps)
require_sorted_sets(leases, delayed, flows, limited, behind, asleep, cancels)
local listening = listeners(stats, events, 'cancelled')
require_history(listening.history, ends, ended)
local q = {
  -- @queue
  levels = levels, traces = listening.history and runs.room(), removed_as = 'cancelled',
}
holds.check(q)
-- The fields of the job, for the history, and its entry, if it has one.
local since, kept
if listening.history then since, kept = job_by_id(q, id) end
if since == 'delayed' or since == 'blocked' then since = nil end
if since then kept = tried.fields(turns, since, kept) end
local open = runs.open_children(steps, id)
local gone, leased = remove_by_id(q, id)
if leased then tell_holders(control, leased) end
if gone > 0 then cancellations.note(cancels, {id}, ttl) end
if listening.history and gone == 1 then
  keep_ends(listening.history, ends, ended, 'cancelled', {{id = id, fields = kept, entry = since, run = q.traces[id]}})
end
if listening.cancelled and gone == 1 then publish(events, 'cancelled', {id}) end
return answer(gone == 1 and #open > 0 and {1, unpack(open)} or gone)
