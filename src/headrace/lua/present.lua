-- present: ask which ids are taken by jobs.
-- KEYS   ids (hash)
-- ARGV   wanted...
-- REPLY  1 or 0 for each of them
-- COST   2 us + 0.3 us each
-- Bounded by the client: at most 1,000.
local reply = {}
for i = wanted, #ARGV do reply[#reply + 1] = redis.call('HEXISTS', ids, ARGV[i]) end
return reply
