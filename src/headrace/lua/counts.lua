-- counts: count the jobs in each state, the jobs that have left the queue, and the held entries, at one instant.
-- KEYS   jobs (stream), stats (hash)
-- ARGV   (none)
-- REPLY  {waiting, parked, leased, delayed, blocked, dead, enqueued, completed, cancelled, deleted, dead_trimmed,
--        held}: held: of a queue with terms as many as leased, or slots must be repaired
-- COST   10 us + 0.1 us per consumer
-- Entries that foreign producers added with a bare XADD count as enqueued on 7.0 and later, where streams count all
-- entries ever added. On 6.2 they do not count, and the law of conservation misses them.
level_streams(stats, levels)
return count_states({
  -- @queue
  levels = levels,
})
