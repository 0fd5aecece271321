-- enqueue_one: add one job with only a payload to the back.
-- KEYS   lane (string), jobs (stream), stats (hash)
-- ARGV   call, payload
-- REPLY  the job's id
-- COST   6 us of server time, 100 bytes
-- Like `enqueue` with one item of form "plain", but with fewer keys: for single calls. Its record is as in lib/record,
-- but has the id unpacked: defining functions takes longer than all other work here.
local kept = call ~= '' and redis.call('GET', lane)
if kept and string.sub(kept, 1, #call + 1) == call .. ' ' then
  redis.call('PEXPIRE', lane, '600000')
  return string.sub(kept, #call + 2)
end
local listening = redis.call('HGET', stats, 'listening')
local id = redis.pcall('XADD', jobs, '*', 'data', payload)
if type(id) == 'table' then return id end -- an error, which comes out with its own code on 6.2 too
redis.call('HINCRBY', stats, 'added', '1')
redis.call('HINCRBY', stats, 'enqueued', '1')
if call ~= '' then redis.call('SET', lane, call .. ' ' .. id, 'PX', '600000') end
if not listening and #payload <= 4096 then return id end

-- @fragments
keep_max_job_size(stats, #payload)
if listening and listeners(stats, events, 'added').added then publish(events, 'added', {id}) end
return id
