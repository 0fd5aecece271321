-- Put one job into a queue unless its id is taken. `delay`: '' now, '+ms' from now, '@ms' at a moment.
-- Answers the id and 1, or the id and 0 when a job of that id is there already; and whether it is the first due now.
local function add(jobs, ids, delayed, bodies, stats, now, id, delay, fields)
  if id ~= '' and (redis.call('HEXISTS', ids, id) == 1 or unnamed(jobs, id)) then return id, 0 end
  local due, first = 0, false
  if delay ~= '' then due = tonumber(string.sub(delay, 2)) + (string.sub(delay, 1, 1) == '+' and now or 0) end
  if due > now then
    fields[#fields + 1] = 'enq'
    fields[#fields + 1] = string.format('%.0f', now)
    redis.call('HSET', bodies, id, cmsgpack.pack(fields))
    redis.call('ZADD', delayed, string.format('%.0f', due), id)
    redis.call('HSET', ids, id, 'delayed')
    first = redis.call('ZRANK', delayed, id) == 0
  else
    local entry = redis.call('XADD', jobs, '*', unpack(fields))
    redis.call('HINCRBY', stats, 'added', 1)
    if id == '' then id = entry else redis.call('HSET', ids, id, entry) end
  end
  redis.call('HINCRBY', stats, 'enqueued', 1)
  return id, 1, first
end
