-- The history of a queue: how its jobs ended, by id, and when, where `history` of its stats says so: how many ends are
-- kept, and for how many ms. An end is text: state, ms, attempt (0 unknown), 1 with a result, worker or '-', reason.
-- @include clock
-- What is known of the end of a job; nil if that is nothing, or too long ago.
local function end_of(ends, stats, id)
  local kept = redis.call('HGET', ends, id)
  if not kept then return nil end
  local ttl = tonumber(string.match(redis.call('HGET', stats, 'history') or '', '^%d+ (%d+)$') or 0)
  local at = tonumber(string.match(kept, '^%a+ (%d+) ') or 0)
  return at + ttl > clock() and kept or nil
end
