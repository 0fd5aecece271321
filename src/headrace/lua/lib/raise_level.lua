-- Move a page of a level's stream, its oldest jobs, to the back of the level before it, or of the jobs stream (*to* 0).
-- Answers the number of moved jobs.
local function raise_level(q, level, to, page)
  local gone, named = {}, {}
  if #page == 0 then return 0 end
  redis.call('HLEN', q.ids) -- of another type: an error, before anything is removed
  local target, carry = q.levels[to] or q.jobs, redis.call('HLEN', q.released) > 0
  for i = 1, #page do gone[i] = page[i][1] end
  redis.call('XDEL', q.levels[level], unpack(gone))
  local names, all, had, ids = {}, {}, {}, {}
  for i = 1, #page do
    names[i] = gone[i] .. '.' .. level
    all[i], had[i] = carried(prioritised(page[i][2], level), names[i], string.match(gone[i], '^%d+'))
    ids[i] = had[i] or ''
  end
  local held = redis.call('HMGET', q.ids, unpack(ids))
  for i = 1, #page do
    local entry = redis.call('XADD', target, '*', unpack(all[i]))
    if to > 0 then entry = entry .. '.' .. to end
    local registered = had[i] and held[i]
    if not registered or registered == names[i] then named[#named + 1], named[#named + 2] = had[i] or names[i], entry end
    local releases = carry and redis.call('HGET', q.released, names[i])
    if releases then
      redis.call('HDEL', q.released, names[i])
      redis.call('HSET', q.released, entry, releases)
    end
  end
  if #named > 0 then redis.call('HSET', q.ids, unpack(named)) end
  redis.call('HINCRBY', q.stats, 'added', #page)
  note_deepest(q, level) -- a foreign producer may have been the first here
  return #page
end
