-- Wake a blocked reader, to learn what is due first. If there is a token already, a reader will come for it.
local function wake_one(wake)
  if redis.call('XLEN', wake) == 0 then redis.call('XADD', wake, '*', 'w', '1') end
end
