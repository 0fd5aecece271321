-- The bounds of a call that hands out jobs, or looks at them: the limits among its arguments, and bytes.
-- Rate limits, and the order of keys, from the arguments behind number *at*.
local function rate_limits(q, at)
  local limits = {}
  for i = at, #ARGV, 3 do
    if tonumber(ARGV[i + 1]) == 0 then
      turning.begin(q, ARGV[i])
      require_hashes(q.turns)
      require_sorted_sets(q.behind)
    else
      limits[#limits + 1] = {name = ARGV[i], step = tonumber(ARGV[i + 1]), burst = tonumber(ARGV[i + 2])}
      q.keyed = q.keyed or ARGV[i] ~= ''
    end
  end
  return limits
end
