-- Hand entries to a consumer. That is no delivery, and a count that went back would repeat a token. *count*: of their
-- deliveries, if it changes.
local function hand_to(jobs, owner, entries, count)
  for i = 1, #entries, 1000 do
    local some = {unpack(entries, i, math.min(#entries, i + 999))}
    if count then some[#some + 1], some[#some + 2] = 'RETRYCOUNT', count end
    some[#some + 1] = 'JUSTID'
    redis.call('XCLAIM', jobs, 'workers', owner, 0, unpack(some))
  end
end
