-- Notify workers at once that they lost leases: entries, or '*' for any. A worker that misses this finds out at a
-- renewal. 'active': a worker has started, or has left idle mode; others sweep the queue as usual. 'ended': see children.
local function tell_holders(control, entries)
  if entries ~= '' then redis.pcall('PUBLISH', control, entries) end
end
