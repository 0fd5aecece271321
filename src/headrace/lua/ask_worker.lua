-- ask_worker: ask a worker to lease no more jobs, to stop, or for nothing any more.
-- KEYS   (none)
-- ARGV   name, request
-- REPLY  {asked, unable}: how many workers of this name were asked · how many cannot be, as they have not reported
-- COST   5 us + 1 us per worker
-- name: as for `fail_worker`. request: 'quiet', 'stop', or '' to resume. The answer to the next `report` of the
-- worker has it; a message on `control` makes it report at once.
local asked, unable = 0, 0
for _, worker in ipairs(redis.call('ZRANGE', workers, 0, -1)) do
  if worker == name or string.match(worker, '^(.*)%.[^.]*$') == name then
    if redis.call('HEXISTS', facts, worker) == 0 then
      unable = unable + 1
    else
      redis.call('HSET', facts, '?' .. worker, request == '' and 'resume' or request)
      asked = asked + 1
    end
  end
end
if asked > 0 then tell_holders(control, 'ask') end
return {asked, unable}
