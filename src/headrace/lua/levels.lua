-- levels: count the priority levels behind the first of this queue: as its jobs have had, or its workers declare.
-- KEYS   stats (hash)
-- ARGV   (none)
-- REPLY  the number; 0 as long as no job ever had a priority, and no worker declares more
-- COST   3 us
-- @include deepest
return deepest_level(stats)
