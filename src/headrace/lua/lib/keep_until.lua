-- Names that count until a moment: a sorted set of them by its ms. The key goes with its last name; its TTL also removes
-- names that would stay longer because the clock went back.
-- Forget names whose time is over, at most *most*.
local function forget_over(key, now, most)
  local gone = redis.call('ZRANGEBYSCORE', key, '-inf', string.format('%.0f', now), 'LIMIT', 0, most)
  if #gone > 0 then redis.call('ZREM', key, unpack(gone)) end
  local latest = redis.call('ZRANGE', key, -1, -1, 'WITHSCORES')[2]
  if latest then redis.call('PEXPIRE', key, string.format('%.0f', math.max(1, tonumber(latest) - now))) end
end
-- Keep *names* until *last*, and forget two more names than these, if so many are over. *how*: 'GT' cuts no time short.
local function keep_until(key, names, last, now, how)
  if #names == 0 then return end
  local rows = {how}
  for _, name in ipairs(names) do rows[#rows + 1], rows[#rows + 2] = string.format('%.0f', last), name end
  redis.call('ZADD', key, unpack(rows))
  forget_over(key, now, #names + 2)
end
