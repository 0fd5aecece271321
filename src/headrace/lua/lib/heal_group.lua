-- Run *read*, which uses the group of the jobs stream. If the group is missing, create it (and the wake stream's): a
-- failover or a FLUSHALL can lose it. Answers the reply, or an error table; and whether it healed.
local function heal_group(jobs, wake, read)
  local reply = read()
  if type(reply) ~= 'table' or not reply.err or not string.find(reply.err, 'NOGROUP', 1, true) then
    return reply, 0
  end
  redis.pcall('XACK', wake, 'workers', '0-0') -- a full server permits it, and then all later writes
  local made = redis.pcall('XGROUP', 'CREATE', jobs, 'workers', '0', 'MKSTREAM')
  if made.err then return made, 0 end
  redis.pcall('XGROUP', 'CREATE', wake, 'workers', '0', 'MKSTREAM')
  return read(), 1
end
