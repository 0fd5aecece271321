-- signs: count signs of trouble: late dead letters, jobs that a rate limit holds back, kinds that no worker handles.
-- KEYS   jobs (stream)
-- ARGV   seconds int, limit count
-- REPLY  {letters, unknown, more, held, buckets, kind...}: letters of the last `seconds`: all, if the queue has no older one, else at most
--        `limit` · unknown: how many of those read died because no worker had a handler for their kind · more: 1 if there are more letters · held: jobs that a
--        rate limit holds back · buckets: ms until the buckets of the whole queue are full, of its first four rate
--        limits, 0 for full, and for limits by a header · kinds of the next jobs that no live worker has a handler for, '' for jobs without kind
-- COST   15 us + 2 us per dead letter + 2 us per job whose kind is read, at most 40
-- It reads 512 KiB of dead letters, and 64 KiB of new jobs and of delayed jobs, or one that is larger. Kinds are told only if all live
-- workers have told their own.
local UNHANDLED = 'no handler for jobs of kind' -- so begins the reason of such a retry, or death
local now, unknown = clock(), 0
local since = math.max(0, now - 1000 * seconds)
local letters, more = stretch(new_budget(524288), dead, string.format('%.0f', since), '+', limit)
local number = #letters
if more then -- the letters of an hour are counted without reading them where the oldest of all is one of them
  local oldest = redis.call('XRANGE', dead, '-', '+', 'COUNT', 1)[1]
  if tonumber(string.match(oldest[1], '^%d+')) >= since then
    number, more = redis.call('XLEN', dead), false
  end
end
for i = 1, #letters do
  if string.sub(letters[i][2][2] or '', 1, #UNHANDLED) == UNHANDLED then unknown = unknown + 1 end
end
local reply = {number, unknown, more and 1 or 0, redis.call('ZCARD', limited)}
local buckets = {}
for i = 1, 4 do buckets[i] = math.max(0, math.ceil((tonumber(redis.call('ZSCORE', rates, 'q' .. i) or 0) or 0) - now)) end
reply[5] = buckets
local known, alive = {}, redis.call('ZRANGEBYSCORE', workers, now, '+inf')
for i = 1, #alive do
  local kept = redis.call('HGET', registered, alive[i]) or ''
  local kinds = strings_of(string.match(kept, '^%d+ %d+ (.*)$')) or {''}
  if #kinds == 0 then known[''] = true end
  for j = 1, #kinds do known[kinds[j]] = true end
end
if #alive == 0 or known[''] then return reply end
local function look(fields, only)
  local kind, reason = '', ''
  for i = #fields - 1, 1, -2 do -- the first counts
    if fields[i] == 'kind' then kind = fields[i + 1] end
    if fields[i] == 'headrace-reason' then reason = fields[i + 1] end
  end
  if known[kind] or only and string.sub(reason, 1, #UNHANDLED) ~= UNHANDLED then return end
  known[kind], reply[#reply + 1] = true, kind
end
local last_handed = delivered(jobs)
local new = stretch(new_budget(65536), jobs, last_handed and '(' .. last_handed or '-', '+', 20)
for i = 1, #new do look(new[i][2]) end
local budget, late = new_budget(65536), redis.call('ZRANGE', delayed, 0, 19)
for i = 1, #late do
  local body = value_of(budget, bodies, late[i])
  if body == false then break end
  if body then look(stored(body), true) end
end
return reply
