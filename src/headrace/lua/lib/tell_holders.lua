-- Tell workers at once that leases are gone: entries, or '*' for any. A worker that misses this learns it by a renewal.
-- 'stir': a worker has begun, or rests no more; others look after the queue as usual.
local function tell_holders(control, entries)
  if entries ~= '' then redis.pcall('PUBLISH', control, entries) end
end
