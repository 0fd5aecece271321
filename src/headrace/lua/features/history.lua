-- feature history: how and when jobs ended.
-- KEYS   ends (hash), ended (zset)
local function require_history(history, ends, ended)
  if not history then return end
  require_hashes(ends)
  require_sorted_sets(ended)
end
-- The fields of a job as they are kept: without its payload, or not at all, where they are larger than 64 KiB.
-- *entry*: tells when it was enqueued, nil if its fields do.
local function fields_kept(fields, entry)
  if entry then
    fields[#fields + 1] = 'enq' -- behind the job's own, which counts
    fields[#fields + 1] = string.match(entry, '^%d+')
  end
  local size, rest, others = 0, {}, 0
  for i = 1, #fields, 2 do
    local bytes = #fields[i] + #fields[i + 1]
    size = size + bytes
    if fields[i] ~= 'data' then
      rest[#rest + 1], rest[#rest + 2] = fields[i], fields[i + 1]
      others = others + bytes
    end
  end
  return size <= 65536 and fields or others <= 65536 and rest or nil
end
-- Keep the ends of jobs, at most 1,000, in the history of their queue, if it has one. *history*: the number of ends and
-- ms, from the stats. *over*: a table for each job: its id, and as far as they are known: attempt, result (true for a job
-- with a result), worker, reason; fields, a flat list, and its entry, if they do not tell when it was enqueued; the ms when
-- its last attempt began; run, as runs.kept answers it, and the number of its last delivery. Surplus and old ends go: at
-- most as many as come, and a hundred more.
local function keep_ends(history, ends, ended, state, over)
  local most, ttl = string.match(history or '', '^(%d+) (%d+)$')
  if not most or #over == 0 then return end
  local now, records, moments = clock(), {}, {}
  local at, room = string.format('%.0f', now), #over + 100
  for i, one in ipairs(over) do
    local worker = one.worker ~= '' and one.worker or '-'
    local record = {state, at, one.attempt or 0, one.result and 1 or 0, worker, shortened(one.reason or '', REASON_BYTES)}
    local text = table.concat(record, ' ')
    local job = one.fields and fields_kept(one.fields, one.entry)
    if job or one.run then
      local delivery = one.run and one.delivery or 0
      text = text .. '\255' .. cmsgpack.pack({job or {}, one.began or 0, one.run or false, delivery})
    end
    records[2 * i - 1], records[2 * i] = one.id, text
    moments[2 * i - 1], moments[2 * i] = at, one.id
  end
  redis.call('HSET', ends, unpack(records))
  redis.call('ZADD', ended, unpack(moments))
  local surplus = redis.call('ZCARD', ended) - most
  local gone = surplus > 0 and redis.call('ZRANGE', ended, 0, math.min(surplus, room) - 1) or {}
  if #gone == 0 then gone = redis.call('ZRANGEBYSCORE', ended, '-inf', string.format('%.0f', now - ttl), 'LIMIT', 0, room) end
  if #gone > 0 then
    redis.call('ZREM', ended, unpack(gone))
    redis.call('HDEL', ends, unpack(gone))
  end
  redis.call('PEXPIRE', ends, ttl)
  redis.call('PEXPIRE', ended, ttl)
end
