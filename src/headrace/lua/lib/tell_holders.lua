-- Tell workers at once that leases are gone: entries, or '*' for any. A worker that misses this learns it by a renewal.
local function tell_holders(control, entries)
  if entries ~= '' then redis.pcall('PUBLISH', control, entries) end
end
