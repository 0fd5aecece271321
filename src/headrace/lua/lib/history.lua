-- The history of a queue: how and when its jobs ended, by id. `history` of the stats says how many ends are kept, and
-- for how many ms. An end is text: state, ms, attempt (0 unknown), 1 with a result, worker or '-', reason.
-- @include clock
-- The moment before which ends are too old: now, if there is no history.
-- The moment before which ends are too old: now, if there is no history.
local function too_old(stats)
  return clock() - tonumber(string.match(redis.call('HGET', stats, 'history') or '', '^%d+ (%d+)$') or 0)
end
-- The end of a job; nil if it is unknown, or too long ago.
local function end_of(ends, stats, id)
  local kept = redis.call('HGET', ends, id)
  if not kept then return nil end
  local at = tonumber(string.match(kept, '^%a+ (%d+) ') or 0)
  return at > too_old(stats) and kept or nil
end
-- The row of an ended job for listings, and its state; nil for foreign bytes.
local function ended_row(id, kept)
  local how, at, attempt, _, worker, reason = string.match(kept or '', '^(%a+) (%d+) (%d+) (%d) (%S+) (.*)$')
  if not how then return nil end
  local fields = {'id', id, 'headrace-reason', reason}
  return {id, fields, 'ended:' .. how, tonumber(attempt), 0, worker == '-' and '' or worker, tonumber(at)}, how
end
