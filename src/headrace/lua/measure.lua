-- measure: count the jobs in each state, and return the age of the oldest job among the next ones.
-- KEYS   jobs (stream), delayed (zset), blocked (hash), dead (stream), stats (hash), levels...
-- ARGV   (none)
-- REPLY  the reply of counts, and then the age in ms, 0 if nothing waits
-- COST   20 us + 0.1 us per consumer
-- The next jobs: the first parked job and the first new job of each level, up to 1 MiB.
-- @include count_states
-- @include levels
-- @include oldest
-- @include page
known_streams(stats, levels)
local reply = count_states({jobs = jobs, delayed = delayed, blocked = blocked, dead = dead, stats = stats, levels = levels})
reply[#reply + 1] = age_of_next(jobs, levels, new_budget())
return reply
