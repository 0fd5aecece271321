-- lease_of: return the delivery that leases an entry, and the end of its lease.
-- KEYS   jobs (stream)
-- ARGV   entry
-- REPLY  {worker, count, until}: the fence of its settlements · until in ms of the server's clock, 0 if that is not
--        known · {} if it is not leased
-- COST   6 us
local row = (redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1) or {})[1]
if not row or is_reserved(row[2]) then return {} end
local deadline = tonumber(redis.call('ZSCORE', leases, entry) or nil)
local term = tonumber(string.match(redis.call('HGET', registered, row[2]) or '', '^%d+ (%d+)') or nil)
return {row[2], row[4], deadline or term and clock() - row[3] + term or 0}
