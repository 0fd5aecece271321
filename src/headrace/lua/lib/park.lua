-- Move leased entries to the front. JUSTID: parking is no delivery, and a count that went back would repeat a token.
local function park(jobs, leases, entries)
  if #entries == 0 then return end
  entries[#entries + 1] = 'JUSTID'
  redis.call('XCLAIM', jobs, 'workers', 'parked', 0, unpack(entries))
  entries[#entries] = nil
  redis.call('ZREM', leases, unpack(entries))
end
