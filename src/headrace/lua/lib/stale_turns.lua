-- If a foreign command removed the entry that has the turn of a key, pass the turn on. This looks at the next *most*
-- keys with waiting jobs; `turns` in `stats` is where to continue. An entry that the group has yet to deliver keeps its
-- turn: after the group was lost, all entries are read again.
local function pass_stale_turns(q, stats, most)
  if redis.call('EXISTS', q.behind) == 0 then return end
  local from, stale, gone, last = redis.call('HGET', stats, 'turns') or '-', {}, {}, nil
  for _ = 1, most do
    local row = redis.call('ZRANGEBYLEX', q.behind, from, '+', 'LIMIT', 0, 1)[1]
    local size = row and string.match(row, '^(%d+):')
    local key = size and string.sub(row, #size + 2, #size + 1 + tonumber(size))
    if not key then
      from = '-'
      break
    end
    local head = redis.call('HGET', q.turns, 'k' .. key)
    local lost = not head or not redis.call('XPENDING', q.jobs, 'workers', head, head, 1)[1]
    if lost and head then
      last = last or holds.place(delivered(q.jobs))
      lost = holds.place(head) <= last
    end
    if lost then
      stale[#stale + 1] = key
      if head then gone[#gone + 1], gone[#gone + 2] = 'e' .. head, 'a' .. head end
    end
    from = '(' .. of_key(key) .. '\255'
  end
  if from == '-' then redis.call('HDEL', stats, 'turns') else redis.call('HSET', stats, 'turns', from) end
  in_parts(gone, function(...) redis.call('HDEL', q.turns, ...) end)
  pass_turns(q, stale)
end
