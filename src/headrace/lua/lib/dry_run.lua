-- In a dry run no command writes: it does nothing, and answers 1. This comes before the fragments that it is to hold.
local redis = redis
if ARGV[6] == '1' then
  local server, reads = redis, {}
  local names = 'EXISTS GET HEXISTS HGET HKEYS HLEN HMGET HSCAN LLEN TIME XINFO XLEN XPENDING XRANGE XREVRANGE ZCARD ZRANGEBYLEX ZSCAN ZSCORE'
  for name in string.gmatch(names, '%u+') do reads[name] = true end
  local function only_reading(how)
    return function(name, ...) return not reads[name] and 1 or server[how](name, ...) end
  end
  redis = {call = only_reading('call'), pcall = only_reading('pcall')}
end
