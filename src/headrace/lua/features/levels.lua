-- feature levels: jobs of a higher priority come first.
-- KEYS   levels...
-- Priority levels. The jobs stream is level 0, which comes first. Each later level has its own stream, where a job
-- waits until it is next. Then it moves to the jobs stream, which therefore has all leased jobs. An entry of the stream
-- of level 2 is named '<entry ID>.2'. A job's level is its header `headrace-priority`; a larger number counts as the
-- last level. This checks the streams of the later levels that a worker knows: jobs of other levels wait for workers
-- that know more levels, and `beyond` is the number of levels then. Fails if a stream has another type.
local function known_streams(stats, levels)
  local there = tonumber(redis.call('HGET', stats, 'levels') or 0)
  for _, stream in ipairs(levels) do redis.call('XLEN', stream) end
  levels.n, levels.deepest = #levels, math.max(#levels, there)
  levels.beyond = there > #levels and there + 1 or nil
  return levels
end
-- The same for a script that needs all levels. Fails if the queue has more.
local function level_streams(stats, levels)
  known_streams(stats, levels)
  if levels.beyond then error('PRIORITIES ' .. levels.beyond, 0) end
  return levels
end
local function level_of(fields, deepest)
  for i = 1, deepest > 0 and #fields or 0, 2 do
    if fields[i] == 'headrace-priority' then
      return math.min(tonumber(string.match(fields[i + 1], '^%d$') or 0), deepest)
    end
  end
  return 0
end
local function size_of(fields)
  local bytes = 0
  for i = 1, #fields do bytes = bytes + #fields[i] end
  return bytes
end
-- A queue has as many levels as its jobs have had.
local function note_deepest(q, level)
  if tonumber(redis.call('HGET', q.stats, 'levels') or 0) < level then redis.call('HSET', q.stats, 'levels', level) end
end
-- Entries of the streams of levels wake no reader that is blocked on the jobs stream; a token on the wake stream does.
local function wake_for_levels(q, number, deepest)
  if number == 0 then return end
  for _ = 1, math.min(number, 8 - redis.call('XLEN', q.wake)) do redis.call('XADD', q.wake, '*', 'w', '1') end
  note_deepest(q, deepest)
end
-- A job goes to the back of its level. Answers the name of its entry. For many jobs, q.added counts all of them, and
-- q.later the jobs of later levels (see add).
local function append(q, fields)
  local level = level_of(fields, q.levels.n)
  local stream = level > 0 and q.levels[level]
  local entry = redis.call('XADD', stream or q.jobs, '*', unpack(fields))
  if q.added then q.added = q.added + 1 else redis.call('HINCRBY', q.stats, 'added', 1) end
  keep_max_job_size(q.stats, size_of(fields))
  if not stream then return entry end
  if q.later then
    q.later.raised, q.later.deepest = q.later.raised + 1, math.max(q.later.deepest, level)
  else
    wake_for_levels(q, 1, level)
  end
  return entry .. '.' .. level
end
-- The stream of the entry with this name, and its ID there; no stream if there is no such level.
local function entry_of(q, name)
  local entry, level = string.match(name, '^(%d+%-%d+)%.(%d)$')
  if not entry then return q.jobs, name end
  return q.levels[tonumber(level)], entry, tonumber(level)
end
-- The fields of an entry of a level's stream, with the header: a foreign producer may have left it out.
local function prioritised(fields, level)
  for i = 1, #fields, 2 do
    if fields[i] == 'headrace-priority' then return fields end
  end
  fields[#fields + 1], fields[#fields + 2] = 'headrace-priority', tostring(level)
  return fields
end
-- The consumers that hold parked entries: one of each level, and one for the suspects of all levels.
local SUSPECTS = 'parked:s'
local function front_of(level) return level == 0 and 'parked' or 'parked:' .. level end
