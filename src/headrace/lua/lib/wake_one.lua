-- Wake a blocked reader, so that it learns the first due time. If a token exists already, a reader will come for it.
local function wake_one(wake)
  if redis.call('XLEN', wake) == 0 then redis.call('XADD', wake, '*', 'w', '1') end
end
