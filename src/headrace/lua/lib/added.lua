-- Count all entries ever added to the streams of a queue, foreign ones too; nil if the server does not count them
-- (6.2).
local function ever_added(jobs, levels)
  local added = 0
  for i = 0, levels.n do
    local stream, counted = redis.pcall('XINFO', 'STREAM', levels[i] or jobs), nil
    for j = 1, #stream, 2 do
      if stream[j] == 'entries-added' then counted = stream[j + 1] end
    end
    if not counted and not stream.err then return nil end -- an error: there is no such stream yet
    added = added + (counted or 0)
  end
  return added
end
