-- Take a record of a queue's trends, once a minute: see trend_records.
-- Is a record due? *last*: the time of the last one, from the stats; nil without trends.
local function trend_due(last, now)
  return last and math.floor((tonumber(last) or 0) / 60000) ~= math.floor(now / 60000)
end
-- If the key is foreign, or this user of the server may not write it, the sweep goes on without a record.
local function keep_trend(q, trends, last, now)
  local size, length = bytes_of(HOURS, HOURS.size), redis.pcall('STRLEN', trends)
  local function put(at, data) return type(redis.pcall('SETRANGE', trends, at, data)) == 'number' end
  if type(length) ~= 'number' or length < size and not put(size - 1, '\0') then return end
  local n, holding = count_states(q)
  local numbers = {math.floor(now / 1000), n[7], n[8], n[9] + n[10] + n[11], n[1] + n[2], n[3], n[4] + n[5], n[6]}
  for i = 2, 4 do numbers[i] = numbers[i] % 4294967296 end
  numbers[9] = age_of_next(q.jobs, q.levels, new_budget(262144), holding)
  for i = 5, 9 do numbers[i] = math.max(0, math.min(numbers[i], 4294967295)) end
  local data = struct.pack('>I4I4I4I4I4I4I4I4I4', unpack(numbers))
  for _, hourly in ipairs({false, true}) do
    local ring, place = trend_ring(hourly, now)
    if math.floor((tonumber(last) or 0) / ring.every) ~= math.floor(now / ring.every) then put(bytes_of(ring, place), data) end
  end
  redis.call('HSET', q.stats, 'trends', string.format('%.0f', now))
end
