-- result: what the completions of jobs kept.
-- KEYS   result (string), others...
-- ARGV   (none)
-- REPLY  {bytes | nil...}, one per key; nil: not completed, completed without a result, or its TTL has passed
-- COST   3 us + 0.3 us per job
-- At most 1,000 keys.
return redis.call('MGET', KEYS[1], unpack(KEYS, 2))
