-- A repeated call gets the same answer again: the lane's last reply is kept for ten minutes, after the number of its
-- call, so that the next call unpacks nothing.
local call_number = ARGV[1]
local function recorded()
  local kept = call_number ~= '' and redis.call('GET', KEYS[1])
  if kept and string.sub(kept, 1, #call_number + 1) == call_number .. ' ' then
    redis.call('PEXPIRE', KEYS[1], '600000') -- a write: a caller that waits for replicas also waits for the first call
    return cmsgpack.unpack(string.sub(kept, #call_number + 2))
  end
end
-- *written*: the script has written already.
local function answer(reply, record, written)
  if call_number ~= '' then
    if not written then redis.call('DEL', KEYS[1]) end -- a full server permits it, and then all later writes: a caller that lost its job must learn it there, too
    redis.call('SET', KEYS[1], call_number .. ' ' .. cmsgpack.pack(record or reply), 'PX', '600000')
  end
  return reply
end
