-- result: what a job's completion kept.
-- KEYS   result (string)
-- ARGV   (none)
-- REPLY  the bytes, or nil: not completed, completed without a result, or its TTL has passed
-- COST   3 us
return redis.call('GET', KEYS[1])
