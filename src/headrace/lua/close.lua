-- close: forget in ten minutes that jobs arrived from other shards, as the outboxes do not send them again.
-- KEYS   (none)
-- ARGV   nonces...
-- REPLY  how many nonces were given
-- COST   5 us + 1 us per nonce, at most 1,000 of them
-- Ten minutes are longer than a call under way may take, and longer than accept admits.
require_sorted_sets(handed)
local now, moments = clock(), {}
local last = string.format('%.0f', now + 600000)
for i = nonces, #ARGV do moments[#moments + 1], moments[#moments + 2] = last, ARGV[i] end
redis.call('PERSIST', handed) -- a full server permits it, and then all later writes
if #moments > 0 then redis.call('ZADD', handed, 'XX', unpack(moments)) end
forget_over(handed, now, 2000)
return #ARGV - nonces + 1
