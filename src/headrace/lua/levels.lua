-- levels: count the priority levels after the first, as the queue's jobs used or its workers declare them.
-- KEYS   stats (hash)
-- ARGV   (none)
-- REPLY  the number; 0 as long as no job ever had a priority, and no worker declares more
-- COST   3 us
return deepest_level(stats)
