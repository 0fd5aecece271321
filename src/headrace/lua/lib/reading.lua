-- The look at new jobs of a queue with terms: each that is read is put into its line, in memory. See picking. `behind`
-- and `turns` are for ordered queues: see read_in_order.
local reading = {JOBS = 250, BYTES = 524288 + 4096, behind = false, turns = false}
-- The number of jobs to read next, by the bytes that are left.
function reading.fits(q, most)
  local number = math.max(0, math.floor((reading.BYTES - q.spent) / q.largest))
  if number < 1 and q.spent < reading.BYTES / 2 then number = 1 end
  most = math.min(most, q.left)
  if number < 1 or most < 1 then q.further = true end
  number = math.min(number, q.chunk, most)
  if number == q.chunk then q.chunk = 4 * q.chunk end
  return number
end
-- Put a row {entry, fields} into its line. *owner*: the consumer that has it, nil for a job that was just read;
-- *count*: its deliveries so far. A key that hands out one job at a time is first asked for its turn.
function reading.put(q, row, owner, count)
  local t, entry, fields = q.t, row[1], row[2]
  q.left = q.left - 1
  weigh_job(q, fields)
  if q.order and reading.behind(q, entry, owner, count) then return end
  local line, cost
  if t.number == 1 and q.levels.n == 0 then -- nearly always so: no table for each job
    local value
    cost = 0
    for i = 1, #fields, 2 do
      local at = t.want[fields[i]]
      if at == 1 then value = fields[i + 1] elseif at == 0 then cost = select(2, agreed.values(t, fields)) end
    end
    line = t.cache[value or false]
    if not line then
      line = picking.line(q, agreed.line(t, 0, {value and string.sub(value, 1, agreed.BYTES)}))
      t.cache[value or false] = line
    end
  else
    local values
    values, cost = agreed.values(t, fields)
    line = picking.line(q, agreed.line(t, level_of(fields, q.levels.n), values), values)
  end
  if cost > 0 then q.costs[entry] = cost end
  if not (line.news or line.fronts) then q.coming[#q.coming + 1] = line end
  if owner then
    row.place, row.owner, row.count = holds.place(entry), owner, count
    q.mine[entry], line.fronts = true, line.fronts or {}
    local n = #line.fronts + 1
    while n > 1 and line.fronts[n - 1].place > row.place do
      line.fronts[n] = line.fronts[n - 1]
      n = n - 1
    end
    line.fronts[n] = row
  else
    line.news = line.news or {}
    line.news[#line.news + 1] = row
  end
end
-- New jobs, to this consumer.
function reading.at_new(q, consumer)
  while true do
    local number = reading.fits(q, q.left)
    local read = number > 0 and redis.call('XREADGROUP', 'GROUP', 'workers', consumer, 'COUNT', number, 'STREAMS', q.jobs, '>')
    read = read and read[1][2] or {}
    if q.order then reading.turns(q, read) end
    for i = 1, #read do reading.put(q, read[i]) end
    if #read < number or number == 0 then return end
  end
end
