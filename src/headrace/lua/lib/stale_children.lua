-- Children whose job has left without a word: a worker of an older version, which knows no links, completed it, or a
-- foreign command removed it.
-- Report the ends of such children to their parents, with the result, if it is kept. This looks at *most* links, chosen at
-- random.
local function report_stale_children(q, most)
  if redis.call('EXISTS', q.links) == 0 then return end
  for _, id in ipairs(redis.call('HRANDFIELD', q.links, most)) do
    if redis.call('HEXISTS', q.ids, id) == 0 then
      local kept = redis.pcall('GET', string.sub(q.links, 1, -6) .. 'result:' .. id)
      local found = type(kept) == 'string'
      runs.children_ended(q, {id}, found and 'completed' or 'unknown', {[id] = found and kept or 'it left its queue, and nothing says how'})
    end
  end
end
