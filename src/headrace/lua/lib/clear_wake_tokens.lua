-- Delete the wake tokens that were delivered. Answers 1 if the wake stream's group was missing and had to be created.
local function clear_wake_tokens(wake)
  local tokens = redis.pcall('XPENDING', wake, 'workers', '-', '+', 100, 'idle')
  if tokens.err then
    redis.call('XGROUP', 'CREATE', wake, 'workers', '0', 'MKSTREAM')
    return 1
  end
  for i = 1, #tokens do
    redis.call('XACK', wake, 'workers', tokens[i][1])
    redis.call('XDEL', wake, tokens[i][1])
  end
  return 0
end
