-- set_concurrency: set how many handlers each worker of the queue runs at once, in place of the number in its code.
-- KEYS   stats (hash)
-- ARGV   concurrency
-- REPLY  1
-- COST   5 us
-- concurrency: at most 10,000; 0 to follow the code again. The answer to the next `report` of a worker has it; a message
-- on `control` makes all of them report at once.
concurrency = whole(concurrency, 0, 10000)
if concurrency > 0 then
  redis.call('HSET', stats, 'concurrency', concurrency)
else
  redis.call('HDEL', stats, 'concurrency')
end
tell_holders(control, 'ask')
return 1
