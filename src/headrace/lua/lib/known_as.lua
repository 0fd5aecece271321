-- The value of a worker in `registered`: '<since ms> <lease ms>', followed by the packed kinds of jobs that it has
-- handlers for: ARGV from *first* on, or the kinds in *kept* if ARGV has none.
local function known_as(now, lease, first, kept)
  local facts = ARGV[first] and ' ' .. cmsgpack.pack({unpack(ARGV, first)})
  return string.format('%.0f', now) .. ' ' .. lease .. (facts or string.match(kept or '', '^%d+ %d+( .*)$') or '')
end
