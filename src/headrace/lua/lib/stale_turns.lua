-- If a foreign command removed the entry that has the turn of a key, pass the turn on. This looks at the next *most*
-- keys with waiting jobs; `turns` in `stats` is where to continue.
-- @include turns
local function pass_stale_turns(q, stats, most)
  if redis.call('EXISTS', q.behind) == 0 then return end
  local from, stale, gone = redis.call('HGET', stats, 'turns') or '-', {}, {}
  for _ = 1, most do
    local row = redis.call('ZRANGEBYLEX', q.behind, from, '+', 'LIMIT', 0, 1)[1]
    local size = row and string.match(row, '^(%d+):')
    local key = size and string.sub(row, #size + 2, #size + 1 + tonumber(size))
    if not key then
      from = '-'
      break
    end
    local head = redis.call('HGET', q.turns, 'k' .. key)
    if not head or not redis.call('XPENDING', q.jobs, 'workers', head, head, 1)[1] then
      stale[#stale + 1] = key
      if head then gone[#gone + 1] = 'e' .. head end
    end
    from = '(' .. of_key(key) .. '\255'
  end
  if from == '-' then redis.call('HDEL', stats, 'turns') else redis.call('HSET', stats, 'turns', from) end
  in_parts(gone, function(...) redis.call('HDEL', q.turns, ...) end)
  pass_turns(q, stale)
end
