-- enqueue_one: add one job that is its payload and nothing else to the back.
-- KEYS   lane (string), jobs (stream), stats (hash), events (channel)
-- ARGV   call, payload
-- REPLY  the job's id
-- COST   8 us of server time, 100 bytes
-- What `enqueue` does with one item of form "plain", with fewer keys: for calls one by one.
-- @include largest
-- @include publish
-- @include record
local known = recorded()
if known then return known end
local heard = redis.call('HGET', stats, 'heard')
local id = redis.pcall('XADD', jobs, '*', 'data', payload)
if type(id) == 'table' then return id end -- an error, which comes out with its own code on 6.2 too
keep_largest(stats, #payload)
redis.call('HINCRBY', stats, 'added', 1)
redis.call('HINCRBY', stats, 'enqueued', 1)
if heard and listeners(stats, events, 'added').added then publish(events, 'added', {id}) end
return answer(id, nil, true)
