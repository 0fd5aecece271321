-- position: how many jobs would be leased before one that waits.
-- KEYS   jobs (stream), ids (hash), stats (hash), levels...
-- ARGV   id, limit
-- REPLY  the number, or `limit` when there are that many or more · -1 no such job waits
-- COST   10 us + 1 us per job in front of it, at most `limit`
-- @include levels
-- @include unnamed
-- @include delivered
local jobs, ids, stats = KEYS[1], KEYS[2], KEYS[3]
local q = {jobs = jobs, levels = behind(stats, 4)}
local id, limit = ARGV[1], tonumber(ARGV[2])
local name = redis.call('HGET', ids, id)
if not name and unnamed(q, id) then name = id end
if not name or name == 'delayed' or name == 'blocked' then return -1 end
local stream, entry, level = entry_of(q, name)
if not stream or not redis.call('XRANGE', stream, entry, entry)[1] then return -1 end
local row = not level and redis.pcall('XPENDING', jobs, 'workers', entry, entry, 1)[1]
local owner = row and row[2]
local held, summary = {}, redis.pcall('XPENDING', jobs, 'workers')
for _, consumer in ipairs(summary[4] or {}) do held[consumer[1]] = tonumber(consumer[2]) end
local before = 0
local function pending_before() return #redis.call('XPENDING', jobs, 'workers', '-', entry, limit + 1, owner) - 1 end
local function stream_before(from) return #redis.call('XRANGE', stream, from, entry, 'COUNT', limit + 1) - 1 end
-- In the order in which they are handed out, up to the job itself.
for at = 0, q.levels.n do
  if owner == front_of(at) then return math.min(before + pending_before(), limit) end
  before = before + (held[front_of(at)] or 0)
  if at == 0 and owner == 'bell' then return math.min(before + pending_before(), limit) end
  if at == 0 then before = before + (held.bell or 0) end
  if at == (level or 0) and not row then
    local last = at == 0 and delivered(jobs)
    return math.min(before + (before < limit and stream_before(last and '(' .. last or '-') or 0), limit)
  end
  before = before + (at > 0 and redis.call('XLEN', q.levels[at]) or redis.call('XLEN', jobs) - (summary[1] or 0))
end
return -1
