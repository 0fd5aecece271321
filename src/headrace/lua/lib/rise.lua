-- The oldest *limit* jobs of a level, up to the entry ID *last*, go to the back of the level before it, or of the jobs
-- stream (*to* 0). Answers how many.
local function rise(q, level, to, limit, last)
  local page = redis.call('XRANGE', q.levels[level], '-', last, 'COUNT', limit)
  local target, carry = q.levels[to] or q.jobs, #page > 0 and redis.call('EXISTS', q.released) == 1
  for i = 1, #page do
    local name = page[i][1] .. '.' .. level
    local own, headers = parse(prioritised(page[i][2], level))
    local id = own.id or name
    local registered = redis.call('HGET', q.ids, id)
    own.id, own.enq = id, own.enq or string.match(name, '^%d+')
    redis.call('XDEL', q.levels[level], page[i][1])
    local entry = redis.call('XADD', target, '*', unpack(compose(own, headers)))
    if to > 0 then entry = entry .. '.' .. to end
    if not registered or registered == name then redis.call('HSET', q.ids, id, entry) end
    local releases = carry and redis.call('HGET', q.released, name)
    if releases then
      redis.call('HDEL', q.released, name)
      redis.call('HSET', q.released, entry, releases)
    end
  end
  if #page > 0 then redis.call('HINCRBY', q.stats, 'added', #page) end
  return #page
end
