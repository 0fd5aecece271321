-- The writes of a call in a queue with terms: see picking.
local filing = {SHOWN = 100, EACH = 8}
-- Take the ends since the last call, at most 1,000 *texts*, for `settle`. Answers the slots that were given back, each as often.
-- Of many ends, one of EACH tells the use of its value.
function filing.ends(q, texts)
  local freed, ended, over, busy = {}, 0, q.over, {}
  local text, since, costed, charge, number, slots, it
  local each = #texts > 2 * filing.EACH and filing.EACH or 1
  local sampled = math.floor(1000 * q.moment) % each
  for i = 1, #texts do
    if string.byte(texts[i]) == 64 then
      ended = tonumber(string.sub(texts[i], 2))
    else
      if texts[i] ~= text then -- jobs of one line that were leased in one call have equal texts
        text = texts[i]
        local bytes, at
        since, costed, charge, number, bytes, at = string.match(text, '^(%S+) (=?)(%S+) (%d+) (%d+):()')
        since, charge, number, costed = tonumber(since), tonumber(charge), tonumber(number), costed == '='
        it = picking.value(q, string.sub(text, at, at + bytes - 1))
        slots = at + bytes <= #text and holds.slots(text) or {}
      end
      for j = 1, #slots do freed[#freed + 1] = slots[j] end
      local ran, n = math.floor(math.max(0, 1000 * (ended - since) / number) + 0.5), #over
      over[n + 1], over[n + 2], over[n + 3], over[n + 4] = it, ran, charge, costed
      if i % each == sampled and #it.key > 1 then busy[it.key] = (busy[it.key] or 0) + each * ran / 1000 end
    end
  end
  if #texts == 1000 then redis.call('LPUSH', q.settled, string.format('@%.3f', ended)) end
  if freed[2] then table.sort(freed) end
  if next(busy) then filing.busy(q, busy) end
  return freed
end
-- The use of each value: halved each minute; the heaviest are kept.
function filing.busy(q, busy)
  local names, scores = {}, {}
  for key, ms in pairs(busy) do
    names[#names + 1] = string.sub(key, 2)
    scores[#names] = ms
  end
  local before, rows = redis.call('ZMSCORE', q.busy, unpack(names)), {}
  for i = 1, #names do
    rows[2 * i - 1], rows[2 * i] = string.format('%.3f', tonumber(before[i] or 0) + scores[i]), names[i]
  end
  local more = redis.call('ZADD', q.busy, unpack(rows)) > 0
  local halved = tonumber(q.t.halved or 0)
  if q.now - halved >= 60000 or q.now < halved then
    local half = halved == 0 and 1 or math.max(0.001, 0.5 ^ math.floor((q.now - halved) / 60000))
    redis.call('ZUNIONSTORE', q.busy, 1, q.busy, 'WEIGHTS', half)
    redis.call('HSET', q.terms, 'halved', string.format('%.0f', q.now))
  end
  if more then redis.call('ZREMRANGEBYRANK', q.busy, 0, -filing.SHOWN - 1) end
end
-- Lease the picked jobs: a job that is gone is charged nothing. Answers the rows that are to be handed out: {entry,
-- fields, deliveries, this one included, 0}.
function filing.lease(q)
  local named, fronts, gone, rows = {}, {}, {}, {}
  for i = 1, #q.picks do
    local pick = q.picks[i]
    if type(pick.job) == 'string' then
      fronts[pick.entry] = pick.job == 'front'
      named[#named + 1] = pick.entry
    end
  end
  in_parts(q.took, function(...) redis.call('ZREM', q.lines, ...) end)
  local bodies, counts = {}, {}
  if #named > 0 then
    local held, some, news = redis.call('HMGET', q.held, unpack(named)), {}, {}
    for i, entry in ipairs(named) do
      if held[i] then
        gone[entry] = true
      elseif fronts[entry] then
        some[#some + 1] = entry
        local row = redis.call('XPENDING', q.jobs, 'workers', entry, entry, 1)[1]
        counts[entry] = row and row[4] + 1
      else
        news[#news + 1] = entry
      end
    end
    if #news > 0 then news[#news + 1], news[#news + 2] = 'RETRYCOUNT', 1 end
    for _, list in ipairs({some, news}) do
      for _, row in ipairs(#list > 0 and redis.call('XCLAIM', q.jobs, 'workers', q.worker, 0, unpack(list)) or {}) do
        if row and row[2] then bodies[row[1]] = row[2] end
      end
    end
  end
  local idle = {}
  for _, pick in ipairs(q.picks) do
    local job, entry = pick.job, pick.entry
    if type(job) == 'string' then
      if bodies[entry] then
        rows[#rows + 1] = {entry, bodies[entry], counts[entry] or 1, 0}
      else
        pick.gone, q.passed = true, true
        if not gone[entry] then redis.call('XACK', q.jobs, 'workers', entry) end
        filing.refund(q, pick)
      end
    else
      rows[#rows + 1] = {entry, job[2], (job.count or 0) + 1, 0}
      if job.count == 0 or not job.owner and q.reader ~= q.worker then
        idle[#idle + 1] = entry
      elseif job.owner then
        redis.call('XCLAIM', q.jobs, 'workers', q.worker, 0, entry, 'RETRYCOUNT', job.count + 1, 'JUSTID')
      end
    end
  end
  hand_to(q.jobs, q.worker, idle, 1)
  return rows
end
function filing.refund(q, pick)
  for _, slot in ipairs(pick.line.slots or {}) do
    slot.used = slot.used - 1
    redis.call('HSET', q.terms, 'again', '') -- the next call lets another line in
  end
  for _, one in ipairs(pick.line.buckets or {}) do
    pace.set_score(one.member, pace.bucket(q.rates, one.member, q.exact, one.limit) - one.limit.step)
    pick.line.rest = pick.line.rest and q.now -- the next call asks again
  end
  local it = pick.line.value
  while it.parent do
    it.credit, it.running = math.min(it.quantum, it.credit + pick.charge), it.running - 1
    it = it.parent
  end
end
-- The slots of the picked jobs. *batch*: jobs of a batch, which share the time.
function filing.slots(q, batch, leased)
  local held, slots = {}, {}
  local stamp, number = string.format('%.3f ', q.moment), string.format(' %d ', math.max(1, math.min(batch, leased)))
  for i, pick in ipairs(q.picks) do
    local line = pick.line
    if not pick.gone then
      local text = not pick.cost and line.text
      if not text then
        text = stamp .. (pick.cost and '=' or '') .. string.format('%d', pick.charge) .. number .. #line.key .. ':' .. line.key
        for j = 1, line.slots and #line.slots or 0 do text = text .. holds.lp(line.slots[j].key) end
        if not pick.cost then line.text = text end
      end
      held[#held + 1], held[#held + 2] = pick.entry, text
      local at = line.slots and holds.place(pick.entry)
      for j = 1, line.slots and #line.slots or 0 do slots[#slots + 1], slots[#slots + 2] = 0, line.slots[j].key .. ' ' .. at end
      if i % filing.EACH == 1 then -- the estimates move by a tenth of the logarithm at most
        local value = line.value
        local waited = math.max(1, q.now - tonumber(string.match(pick.entry, '^%d+')))
        value.p50 = value.p50 == 0 and waited or math.max(1, value.p50 * (waited > value.p50 and 1.05 or 1 / 1.05))
        value.p95 = value.p95 == 0 and waited or math.max(1, value.p95 * (waited > value.p95 and 1.1 or 1 / 1.005))
      end
    end
  end
  in_parts(held, function(...) redis.call('HSET', q.held, ...) end)
  if slots[1] then in_parts(slots, function(...) redis.call('ZADD', q.slots, ...) end) end
end
-- Put the jobs that were not picked into lines. With lines, or without a lease, new jobs were read to their consumer.
function filing.rest(q)
  local owners, filed = {['parked:new'] = {}, ['parked:front'] = {}}, {}
  local function cost(entry) return holds.cost(q.costs[entry] or 0) end
  for _, line in ipairs(q.all_lines) do
    for i = line.front_at, line.fronts and #line.fronts or 0 do
      local row = line.fronts[i]
      table.insert(owners[row.count == 0 and 'parked:new' or 'parked:front'], row[1])
      filed[#filed + 1], filed[#filed + 2] = 0, line.key .. ' ' .. row.place .. (row.count == 0 and '' or '+') .. cost(row[1])
    end
    for i = line.new_at, line.news and #line.news or 0 do
      if q.reader ~= 'parked:new' then table.insert(owners['parked:new'], line.news[i][1]) end
      filed[#filed + 1], filed[#filed + 2] = 0, line.key .. ' ' .. holds.place(line.news[i][1]) .. cost(line.news[i][1])
    end
  end
  for owner, entries in pairs(owners) do
    hand_to(q.jobs, owner, entries, owner == 'parked:new' and 0)
  end
  in_parts(filed, function(...) redis.call('ZADD', q.lines, ...) end)
  if #filed > 0 then
    q.has_lines = true
    holds.shield(q)
  end
end
-- Lines that changed: their records, of those that stand in the line of a limit, and where a value has several; and
-- whether they rest.
function filing.lines(q, more)
  for _, line in ipairs(q.bare and {} or q.all_lines) do
    if line.came then
      local now, value = false, line.value.key
      if line.stop then now = '!' .. line.stop elseif line.alive and not q.leafy then now = picking.place_of(q, line) end
      local stood = line.kept and string.byte(line.kept) ~= 33 and line.kept
      if stood and stood ~= now then more.removed[#more.removed + 1] = value .. ' ' .. stood .. ' ' .. line.key end
      if now and now ~= line.kept then
        if not line.stop then more.added[#more.added + 1], more.added[#more.added + 2] = 0, value .. ' ' .. now .. ' ' .. line.key end
        more.shares[#more.shares + 1], more.shares[#more.shares + 2] = 'l' .. line.key, now
      elseif line.kept and not now then
        more.gone[#more.gone + 1] = 'l' .. line.key
      end
      if line.rest then
        more.resting[#more.resting + 1], more.resting[#more.resting + 2] = string.format('%.0f', math.ceil(line.rest)), line.key
      elseif q.has_resting and line.buckets then
        more.rested[#more.rested + 1] = line.key
      end
    end
  end
end
function filing.turn(it, ring, round, seq) return string.format('%s %s%016d%016d %s', it.parent.key, ring, round, seq, it.key) end
-- Nodes that changed. A node of which no job waits or is leased leaves nothing behind.
function filing.nodes(q, more)
  for i = 1, #q.all_nodes do
    local it = q.all_nodes[i]
    local stays = it.ring ~= '' or it.running > 0 or not it.parent
    if not stays and it.changed and q.has_lines then
      stays = #redis.call('ZRANGEBYLEX', q.lines, '[' .. it.key, '(' .. it.key .. '\255', 'LIMIT', 0, 1) > 0
    end
    if it.moved and stays then
      more.shares[#more.shares + 1], more.shares[#more.shares + 2] = 'v' .. it.key, string.format('%.0f %s', it.base, it.turn)
    end
    if it.changed and it.parent then
      local ring = string.byte(it.ring) or 0
      local was = 0
      local round, seq, _
      if it.kept then _, _, _, round, seq, _, _, was = struct.unpack(agreed.NODE, it.kept) end
      if was ~= ring or seq ~= it.seq then
        if was > 0 then more.removed[#more.removed + 1] = filing.turn(it, string.char(was), round, seq) end
        if ring > 0 then more.added[#more.added + 1], more.added[#more.added + 2] = 0, filing.turn(it, it.ring, it.round, it.seq) end
      end
      if stays then
        more.shares[#more.shares + 1] = it.key
        more.shares[#more.shares + 1] = struct.pack(agreed.NODE, it.credit, it.mean, it.running, it.round, it.seq, it.p50, it.p95, ring)
      else
        more.gone[#more.gone + 1], more.gone[#more.gone + 2] = it.key, 'v' .. it.key
      end
    end
  end
end
-- Write all: picked jobs are leased, and other jobs are filed.
function filing.all(q, batch)
  local rows = filing.lease(q)
  filing.slots(q, batch, #rows)
  filing.rest(q)
  local more = {shares = {}, gone = {}, added = {}, removed = {}, resting = {}, rested = {}}
  filing.lines(q, more)
  filing.nodes(q, more)
  if q.seq and q.seq ~= q.seq_before then more.shares[#more.shares + 1], more.shares[#more.shares + 2] = 'c', string.format('%.0f', q.seq) end
  in_parts(more.removed, function(...) redis.call('ZREM', q.ready, ...) end)
  in_parts(more.added, function(...) redis.call('ZADD', q.ready, ...) end)
  if more.gone[1] then in_parts(more.gone, function(...) redis.call('HDEL', q.shares, ...) end) end
  in_parts(more.shares, function(...) redis.call('HSET', q.shares, ...) end)
  in_parts(more.rested, function(...) redis.call('ZREM', q.resting, ...) end)
  in_parts(more.resting, function(...) redis.call('ZADD', q.resting, ...) end)
  if q.t.mean ~= q.mean_before then redis.call('HSET', q.terms, 'mean', string.format('%.0f', q.t.mean)) end
  return rows
end
