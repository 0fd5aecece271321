-- Tell the workers at once that what they have leased is gone: entries, or '*' for any. Renewals tell whom this misses.
local function tell_holders(control, entries)
  if entries ~= '' then redis.pcall('PUBLISH', control, entries) end
end
