-- find: find a job by its id.
-- KEYS   jobs (stream), ids (hash), stats (hash)
-- ARGV   id, cursor
-- REPLY  {now, row, cursor, records, progress, deliveries}, row as in list, or {} if the job was not found (so far): cursor is then
--        where to continue, or '' at the end. The row of an ended job has the state `ended:` and how it ended; its ms is
--        the time of the end. records as in steps; a 12th value is the bytes of a value that a history left out. progress:
--        'ms fraction text', or ''. deliveries: as in features/runs, or ''. All three are left out for a job that has none
-- COST   10 us + 0.5 us per record; 1 us per dead letter, at most 1,000 and 1 MiB of them, when the job is in no other
--        state
-- cursor: '' at first. One call searches a bounded part of the dead letters, the newest first.
local q = {
  -- @queue
  levels = level_streams(stats, levels),
}
local now = clock()
local function releases(entry) return tonumber(redis.call('HGET', released, entry) or 0) or 0 end
-- The answer with the job's row, and with its records if the run was of this job: first enqueued at *enq*, or with this
-- *letter*.
local function found(row, enq, letter)
  local name = letter and runs.of_letter(letter) or id
  local run = redis.call('EXISTS', steps) == 1 and runs.read(steps, name)
  if not run or enq and run.enq ~= '' and run.enq ~= enq then return {now, row, ''} end
  return {now, row, '', runs.listed(steps, name, run), runs.more(steps, name)}
end
local entry, fields, level = job_by_id(q, id)
if entry == 'delayed' then
  local due = tonumber(redis.call('ZSCORE', delayed, id) or now)
  return found({id, fields, 'delayed', 0, releases(id), '', due}, parse(fields).enq)
elseif entry == 'blocked' then
  return {now, {id, fields, 'blocked', 0, 0, '', 0}, ''}
elseif entry then
  local own = parse(fields)
  if (own.id or entry) == id then
    local enq = own.enq or string.match(entry, '^%d+')
    if level then return found({entry, fields, 'waiting', 0, releases(entry), '', 0}, enq) end
    local row = redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1)[1]
    fields = tried.fields(turns, entry, fields)
    if not row then return found({entry, fields, 'waiting', 0, releases(entry), '', 0}, enq) end
    if row[2] == 'limited' then
      local due = tonumber(redis.call('ZSCORE', limited, entry) or now)
      return found({entry, fields, 'delayed', row[4], releases(entry), '', due}, enq)
    end
    local suspended = runs.state(row[2])
    if suspended then return found({entry, fields, suspended, row[4], releases(entry), '', runs.due(asleep, entry), 1}, enq) end
    local waits = is_undelivered(row[2]) or row[2] == 'behind'
    local state = waits and 'waiting' or is_parked(row[2]) and 'parked' or 'leased'
    local count = is_undelivered(row[2]) and 0 or row[4]
    return found({entry, fields, state, count, releases(entry), row[2], row[3]}, enq)
  end
end
-- The end of a job, if the history has it. The letter of a dead job has more data, unless it is gone.
local function at_the_end()
  local row, how, run = ended_row(id, end_of(ends, stats, id))
  if row then return {now, row, '', unpack(run or {})}, how end
end
local kept_end, how = at_the_end()
if kept_end and how ~= 'dead' then return kept_end end
-- The newest first: an id may have died more than once.
local function has_id(letter, fields)
  for i = 1, #fields - 1, 2 do
    if fields[i] == 'id' and fields[i + 1] ~= '' then return fields[i + 1] == id end
  end
  return letter == id
end
local page, more = stretch_back(new_budget(), dead, cursor == '' and '+' or cursor, '-', 1000)
for i = 1, #page do
  if has_id(page[i][1], page[i][2]) then return found({page[i][1], page[i][2], 'dead', 0, 0, '', 0}, nil, page[i][1]) end
end
if not more and kept_end then return kept_end end
return {now, {}, more and '(' .. page[#page][1] or ''}
