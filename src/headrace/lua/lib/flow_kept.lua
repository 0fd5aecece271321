-- The fields of jobs that a flow's run keeps for their next stages: see flow_run. `read` has the fields that this call has
-- read.
local jobs_kept = {read = {}}
-- The headers of a job as its run keeps them; nil if they were removed, or overwritten, by hand.
function jobs_kept.headers(packed)
  local fields = strings_of(packed)
  if fields and #fields % 2 == 0 then return fields end
end
-- The fields of a job, kept for its next stage, read once; nil if they were removed, or overwritten, by hand.
function jobs_kept.job(run, id)
  local name = run .. ' ' .. id
  if jobs_kept.read[name] == nil then
    local data, packed = unpack(redis.call('HMGET', run, 'data:' .. id, 'job:' .. id))
    local others = data and jobs_kept.headers(packed)
    if others then weigh(budget, {data, packed}) end
    jobs_kept.read[name] = others and {'data', data, 'id', id, unpack(others)} or false
  end
  return jobs_kept.read[name] or nil
end
function jobs_kept.keep(run, id, fields)
  jobs_kept.read[run .. ' ' .. id] = fields
  redis.call('HSET', run, kept_as(id, fields))
end
-- The fields with which a job goes on, without the fields of the stage that it leaves.
function jobs_kept.onward(id, own, headers)
  local kept = {}
  for i = 1, #headers, 2 do
    if headers[i] ~= 'headrace-nonce' then kept[#kept + 1], kept[#kept + 2] = headers[i], headers[i + 1] end
  end
  return compose({data = own.data or '', id = id}, kept)
end
-- The same from the record of its wait for children; nil without one, or for foreign bytes.
function jobs_kept.waited(id, body)
  local fields = body and jobs_kept.headers(body)
  if not fields or fields[1] ~= 'data' then return nil end
  return jobs_kept.onward(id, parse(fields))
end
-- Whether nothing is kept of a child because its stage was a last one when it entered it: it has passed no other.
function jobs_kept.none(run, id, job)
  if not string.match(id, ABOVE) then return false end
  local asked = {'data:' .. id, 'job:' .. id}
  for i = 1, stages do
    if names[i] ~= job.stage then asked[#asked + 1] = 'left:' .. names[i] .. ':' .. id end
  end
  for _, known in ipairs(redis.call('HMGET', run, unpack(asked))) do
    if known then return false end
  end
  return true
end
-- The parts of a job that its run still has, for a dead letter: our fields, its headers, and which parts are lost.
function jobs_kept.remains(run, id, job)
  local data, packed = unpack(redis.call('HMGET', run, 'data:' .. id, 'job:' .. id))
  weigh(budget, {data or '', packed or ''})
  local headers = jobs_kept.headers(packed)
  local lost = {}
  if not data then lost[#lost + 1] = 'its payload (data:' .. id .. ')' end
  if not headers then lost[#lost + 1] = 'its headers (job:' .. id .. ')' end
  local own = {data = data or '', id = id, attempt = '0', enq = string.format('%.0f', now)}
  headers = headers or {'headrace-flow', run}
  table.insert(headers, 'headrace-nonce')
  table.insert(headers, string.format('%.0f', job.nonce))
  local why = #lost > 0 and 'the state of its run has lost ' .. table.concat(lost, ' and ') or nil
  return own, headers, why
end
-- Keep the fields of a job that was redriven when its run's state was gone, if it still waits: another program may
-- complete it.
function jobs_kept.again(run, q, id)
  local entry = redis.call('HGET', q.ids, id)
  local body = entry and string.match(entry, '^%d+%-%d+$') and redis.call('XRANGE', q.jobs, entry, entry)[1]
  if not body then return end
  weigh(budget, body[2])
  jobs_kept.keep(run, id, jobs_kept.onward(id, parse(body[2])))
end
