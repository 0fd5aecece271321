-- levels: count the priority levels behind the first that are known of this queue.
-- KEYS   stats (hash)
-- ARGV   (none)
-- REPLY  the number; 0 as long as no job ever had a priority
-- COST   2 us
return tonumber(redis.call('HGET', stats, 'levels') or 0)
