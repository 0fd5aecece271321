-- The options of a queue that its users declare, by name, each in words.
local declared = {}
function declared.read(stats)
  local kept, found = {}, strings_of(redis.call('HGET', stats, 'declared')) or {}
  for i = 1, #found, 2 do kept[found[i]] = found[i + 1] end
  return kept
end
function declared.version(stats) return tonumber(redis.call('HGET', stats, 'declaration')) or 0 end
function declared.write(stats, kept)
  local names, all = {}, {}
  for name in pairs(kept) do names[#names + 1] = name end
  table.sort(names)
  for i = 1, math.min(#names, 16) do all[2 * i - 1], all[2 * i] = names[i], kept[names[i]] end
  redis.call('HSET', stats, 'declared', cmsgpack.pack(all), 'declaration', declared.version(stats) + 1)
end
