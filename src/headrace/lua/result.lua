-- result: fetch the results that completions kept.
-- KEYS   result (string), others...
-- ARGV   items...
-- REPLY  {bytes | nil | 0...}, one per job; nil: not completed, completed without a result, cancelled, or its TTL has
--        passed · 0: ask for it again, as the results before it are 1 MiB
-- COST   3 us + 0.5 us per job
-- Items: the ids, one per key of a result, at most 1,000. A cancelled job has no result: the kept one is of an
-- earlier job with its id.
local reply, bytes, noted = {}, 0, cancellations.present(cancels)
for i, key in ipairs({result, unpack(others)}) do
  local kept = 0
  if bytes < 1048576 then
    kept = redis.pcall('GET', key)
    if type(kept) ~= 'string' then kept = false end -- a key of another type counts as missing
    if kept and noted and cancellations.has(noted, ARGV[items + i - 1]) then kept = false end
    if kept then bytes = bytes + #kept end
  end
  reply[i] = kept
end
return reply
