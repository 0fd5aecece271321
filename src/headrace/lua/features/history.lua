-- feature history: how and when jobs ended.
-- KEYS   ends (hash), ended (zset)
-- Keep the ends of jobs, at most 1,000, in the history of their queue, if it has one. *history*: the number of ends and
-- ms, from the stats. *more*: lists beside *ids*, or one value for all: attempts, results (true for a job with a
-- result), workers, reasons; jobs, each a flat list of fields, their entries, if the fields do not tell when they were
-- enqueued, and the ms when their last attempts began; runs, as
-- runs.kept answers them, and the numbers of their last deliveries. Surplus and old ends go: at most as many as come,
-- and a hundred more.
local function require_history(history, ends, ended)
  if not history then return end
  require_hashes(ends)
  require_sorted_sets(ended)
end
local keep_ends
do
local function nth(some, i)
  if type(some) == 'table' then return some[i] end
  return some
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
function keep_ends(history, ends, ended, state, ids, more)
  local most, ttl = string.match(history or '', '^(%d+) (%d+)$')
  if not most or #ids == 0 then return end
  local now, records, moments = clock(), {}, {}
  local at, room = string.format('%.0f', now), #ids + 100
  for i, id in ipairs(ids) do
    local worker, reason = nth(more.workers, i) or '', nth(more.reasons, i) or ''
    records[2 * i - 1], moments[2 * i - 1], moments[2 * i] = id, at, id
    records[2 * i] = table.concat({
      state, at, nth(more.attempts, i) or 0, nth(more.results, i) and 1 or 0, worker ~= '' and worker or '-',
      shortened(reason, REASON_BYTES),
    }, ' ')
    local job = more.jobs and more.jobs[i] and fields_kept(more.jobs[i], more.entries and more.entries[i])
    local run = more.runs and more.runs[i]
    if job or run then
      records[2 * i] = records[2 * i] .. '\255' .. cmsgpack.pack({
        job or {}, nth(more.began, i) or 0, run or false, nth(more.deliveries, i) or 0,
      })
    end
  end
  redis.call('HSET', ends, unpack(records))
  redis.call('ZADD', ended, unpack(moments))
  local over = redis.call('ZCARD', ended) - most
  local gone = over > 0 and redis.call('ZRANGE', ended, 0, math.min(over, room) - 1) or {}
  if #gone == 0 then gone = redis.call('ZRANGEBYSCORE', ended, '-inf', string.format('%.0f', now - ttl), 'LIMIT', 0, room) end
  if #gone > 0 then
    redis.call('ZREM', ended, unpack(gone))
    redis.call('HDEL', ends, unpack(gone))
  end
  redis.call('PEXPIRE', ends, ttl)
  redis.call('PEXPIRE', ended, ttl)
end
end
