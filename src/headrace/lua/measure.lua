-- measure: count the jobs in each state, and tell how long the oldest of the jobs that are next has been in the queue.
-- KEYS   jobs (stream), delayed (zset), blocked (hash), dead (stream), stats (hash), levels...
-- ARGV   (none)
-- REPLY  the reply of counts, and then the age in ms, 0 if nothing waits
-- COST   20 us + 0.1 us per consumer
-- Jobs that are next: the first one parked, and the first new one, of each level, as far as they are 1 MiB.
-- @include levels
-- @include oldest
-- @include page
-- @include tally
known_streams(stats, levels)
local reply = tally({jobs = jobs, delayed = delayed, blocked = blocked, dead = dead, stats = stats, levels = levels})
reply[#reply + 1] = age_of_next(jobs, levels, new_budget())
return reply
