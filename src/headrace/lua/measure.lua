-- measure: count the jobs in each state, and return the age of the oldest of the next jobs, the longest wait, and about's facts.
-- KEYS   jobs (stream), stats (hash)
-- ARGV   (none)
-- REPLY  the reply of counts, and then the age in ms, 0 if nothing waits, and the longest wait of a run for its signal in
--        ms, 0 if none waits, and the reply of about
-- COST   25 us + 0.1 us per consumer + 0.1 us per run that waits, at most 100 of them
-- The next jobs: the first parked job and the first new job of each level, up to 1 MiB. The longest wait is that of the
-- 100 runs whose jobs are the oldest.
known_streams(stats, levels)
local reply, holding = count_states({
  -- @queue
  levels = levels,
})
reply[#reply + 1] = age_of_next(jobs, levels, new_budget(), holding)
local longest = 0
if holding[runs.WAITS] then
  for _, row in ipairs(redis.pcall('XPENDING', jobs, 'workers', '-', '+', 100, runs.WAITS)) do
    longest = math.max(longest, row[3])
  end
end
reply[#reply + 1] = longest
reply[#reply + 1] = about_queue(stats)
return reply
