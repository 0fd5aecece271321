-- The value of a worker in `registered`: '<since ms> <lease ms>', and behind that, packed, the kinds of jobs that it has
-- handlers for: ARGV from *first* on, or those of *kept* if there are none.
local function known_as(now, lease, first, kept)
  local told = ARGV[first] and ' ' .. cmsgpack.pack({unpack(ARGV, first)})
  return string.format('%.0f', now) .. ' ' .. lease .. (told or string.match(kept or '', '^%d+ %d+( .*)$') or '')
end
