-- Milliseconds of the server's clock, the only one that decides anything.
local function clock()
  local time = redis.call('TIME')
  return time[1] * 1000 + math.floor(time[2] / 1000)
end
