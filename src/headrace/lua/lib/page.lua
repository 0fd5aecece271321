-- A script reads jobs up to a number of bytes: about 1 MiB, or one job if it is larger. The size of a job is known
-- after the read. So first one job is read, then as many as fit if all are as large as the largest so far: at most
-- twice as many as before, and at most 8, as small jobs say nothing of the jobs behind them. So at worst this many
-- large jobs are read too much. A budget belongs to one script. A script that writes jobs it has read weighs them
-- again.
local function new_budget(bytes) return {left = bytes or 1048576, largest = 0, step = 0.5} end
-- The number of jobs to read next: at most *limit*, and at most 8 at once; 0 when the budget is spent.
local function fitting(budget, limit)
  local fit = budget.left <= 0 and 0 or budget.largest == 0 and 1 or math.max(0, math.floor(budget.left / budget.largest))
  budget.step = math.min(2 * budget.step, 8)
  return math.min(limit, fit, budget.step)
end
local function weigh(budget, fields)
  local size = 64
  for i = 1, #fields do size = size + #fields[i] + 8 end
  budget.left, budget.largest = budget.left - size, math.max(budget.largest, size)
end
-- Entries of a stream that *read* answers, at most *limit*, within the budget; and whether there may be more. *read*
-- gets the first ID and a number of entries.
local function stretch_by(budget, read, from, limit)
  local page, count = {}, fitting(budget, limit)
  while count > 0 do
    local some = read(from, count)
    for i = 1, #some do
      weigh(budget, some[i][2])
      page[#page + 1] = some[i]
    end
    if #some < count then return page, false end
    from, count = '(' .. page[#page][1], fitting(budget, limit - #page)
  end
  return page, true
end
-- The same for the entries of a stream from *from* to *to*.
local function stretch(budget, stream, from, to, limit)
  return stretch_by(budget, function(at, n) return redis.call('XRANGE', stream, at, to, 'COUNT', n) end, from, limit)
end
-- One entry of a stream by its ID: nil without such an entry, false when the budget is spent.
local function entry_at(budget, stream, entry)
  if fitting(budget, 1) == 0 then return false end
  local body = redis.call('XRANGE', stream, entry, entry)[1]
  if body then weigh(budget, body[2]) end
  return body
end
