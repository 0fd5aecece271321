-- The parts of a kept schedule: its timing, its policy for missed ticks, the fields of its jobs, and '<ms> <id>' of the
-- last job that it enqueued, if any; nil for foreign bytes.
local function scheduled(kept)
  local readable, parts = pcall(cmsgpack.unpack, kept)
  if not readable or type(parts) ~= 'table' or type(parts[1]) ~= 'string' or type(parts[2]) ~= 'string' then return end
  if type(parts[3]) ~= 'table' or #parts[3] < 2 or #parts[3] % 2 > 0 then return end
  for i = 1, #parts[3] do
    if type(parts[3][i]) ~= 'string' then return end
  end
  return parts[1], parts[2], parts[3], type(parts[4]) == 'string' and parts[4] or nil
end
