-- Move kept moments back after the clock went back; otherwise they would come too late by as much. It moves upwards by
-- score, 1,000 a call, so that moved ones are behind. A moment nearer to now than to the last sweep, at *seen*, was
-- kept since the clock went back, and stays; in `limited` all are moved, as none of them can come too early. `rewind`
-- in `stats`: `<ms that the clock went back> <seen> <which key> <from where>`. Answers whether there are more.
local function correct_clock(stats, now, seen, workers, leases, limited)
  local back, which, from = seen - now, 1, nil
  if back <= 1000 then
    local kept = redis.call('HGET', stats, 'rewind')
    if not kept then return false end
    back, seen, which, from = string.match(kept, '^(%d+) (%d+) (%d) (%d+)$')
    back, seen, which, from = tonumber(back), tonumber(seen), tonumber(which), tonumber(from)
  end
  local most = 1000
  for at, moments in ipairs({workers, leases, limited}) do
    if at >= which then
      if at > which or not from then from = seen - (moments == limited and back or back / 2) end
      local rows = redis.call('ZRANGEBYSCORE', moments, string.format('%.0f', from), '(+inf', 'WITHSCORES', 'LIMIT', 0, most)
      for i = 1, #rows, 2 do
        redis.call('ZADD', moments, string.format('%.1f', tonumber(rows[i + 1]) - back), rows[i]) -- keeps the half ms that marks an idle worker
      end
      if #rows == 2 * most then
        redis.call('HSET', stats, 'rewind', string.format('%.0f %.0f %d %.0f', back, seen, at, rows[#rows]))
        return true
      end
      most = most - #rows / 2
    end
  end
  redis.call('HDEL', stats, 'rewind')
  return false
end
