-- result: fetch the results that completions kept.
-- KEYS   result (string), others...
-- ARGV   (none)
-- REPLY  {bytes | nil | 0...}, one per key; nil: not completed, completed without a result, or its TTL has passed · 0:
--        ask for it again, as the results before it are 1 MiB
-- COST   3 us + 0.5 us per job
-- At most 1,000 keys.
local reply, bytes = {}, 0
for i, key in ipairs({result, unpack(others)}) do
  local kept = 0
  if bytes < 1048576 then
    kept = redis.pcall('GET', key)
    if type(kept) ~= 'string' then kept = false else bytes = bytes + #kept end -- a key of another type counts as missing
  end
  reply[i] = kept
end
return reply
