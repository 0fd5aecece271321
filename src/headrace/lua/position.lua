-- position: count the jobs that would be leased before a waiting job.
-- KEYS   jobs (stream), ids (hash), stats (hash)
-- ARGV   id, limit count, cursor
-- REPLY  {number, cursor}: number: the jobs counted so far, at most `limit`; -1: no such job waits · cursor: where to
--        continue, with the rest of `limit`, or '' at the end
-- COST   10 us + 1 us per job in front of it, at most `limit` and 1 MiB of them
-- cursor: '' at first. Add up the numbers of all calls. In a queue that is fair between values, jobs of other values
-- count as well: those whose entries come before.
local q = {
  -- @queue
  levels = level_streams(stats, levels),
}
local budget = new_budget()
local name, its, fields = redis.call('HGET', ids, id), false, nil
if not name and cursor == '' then its, fields = is_entry_id(q, id) end
if not name and (its or cursor ~= '') then name = id end
if not name or name == 'delayed' or name == 'blocked' then return {-1, ''} end
local stream, entry, level = entry_of(q, name)
if stream and cursor == '' then fields = fields or (entry_at(budget, stream, entry) or {})[2] end
if not stream or cursor == '' and not fields then return {-1, ''} end
if its then weigh(budget, fields) end
local row = not level and redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1)[1]
local owner = row and row[2]
-- The stream's entries must be read to be counted.
local function stream_before(from, before)
  local page, more = stretch(budget, stream, from, '(' .. entry, limit - before)
  before = before + #page
  return {before, more and before < limit and (#page > 0 and '(' .. page[#page][1] or from) or ''}
end
if cursor ~= '' then return row and {-1, ''} or stream_before(cursor, 0) end
local held_by_owner, summary = {}, redis.pcall('XPENDING', jobs, 'workers')
for _, consumer in ipairs(summary[4] or {}) do held_by_owner[consumer[1]] = tonumber(consumer[2]) end
local before = 0
local function pending_before()
  return {math.min(before + #redis.call('XPENDING', jobs, 'workers', '-', entry, limit + 1, owner) - 1, limit), ''}
end
-- Count in the order of leases, up to the job itself.
for at = 0, q.levels.n do
  for _, consumer in ipairs(waiting_consumers(at)) do
    if owner == consumer[2] then return pending_before() end
    before = before + (held_by_owner[consumer[2]] or 0)
  end
  if at == (level or 0) and not row then
    local last = at == 0 and delivered(jobs)
    return before < limit and stream_before(last and '(' .. last or '-', before) or {limit, ''}
  end
  before = before + (at > 0 and redis.call('XLEN', q.levels[at]) or redis.call('XLEN', jobs) - (summary[1] or 0))
end
return {-1, ''}
