-- Keep a job among the dead letters, the newest *limit* of them. Fields: ours first, then the job's own, without the
-- reason of an earlier retry. `attempt` counts all deliveries, *releases* the deliveries that spent no attempt: the
-- token of a redriven job must be larger than every earlier token. Answers id, attempts, reason and kind, for the log.
-- When the limit became smaller, each new letter replaces at most ten old ones. A run keeps its records as long as its
-- letter, whose reason names the steps that are still to be undone. The reason is kept for the flow of a job that died outside of it. q: dead, stats, steps, flows.
local function keep_dead(q, limit, reason, worker, releases, own, headers)
  local dead, steps = q.dead, q.steps
  local run = runs.of_job(steps, own)
  local left = run and runs.to_undo(runs.records(steps, own.id, run)) or ''
  if left ~= '' then reason = reason .. '; not undone: ' .. shortened(left, REASON_BYTES) end
  if limit > 0 then
    local letter = {'reason', reason, 'worker', worker, 'released', string.format('%.0f', releases)}
    own.reason = nil
    local fields = compose(own, headers)
    for i = 1, #fields do letter[#letter + 1] = fields[i] end
    local entry = redis.call('XADD', dead, '*', unpack(letter))
    if run then runs.carry(steps, own.id, run, steps, runs.of_letter(entry)) end
  elseif run then
    runs.forget(steps, own.id)
  end
  local length = redis.call('XLEN', dead)
  local most = math.max(limit, length - 10)
  local trimmed = limit == 0 and 1 or length > most and redis.call('XTRIM', dead, 'MAXLEN', string.format('%.0f', most)) or 0
  if trimmed > 0 then redis.call('HINCRBY', q.stats, 'dead_trimmed', trimmed) end
  local kind = ''
  for i = 1, #headers, 2 do
    if headers[i] == 'kind' then kind = headers[i + 1] end
    local score = headers[i] == 'headrace-flow' and redis.call('ZSCORE', q.flows, own.id)
    if score and marked(score) == DIED then
      redis.call('HSET', steps, runs.why(own.id), shortened(reason, REASON_BYTES))
    end
  end
  return {own.id, string.format('%.0f', own.attempt - releases), reason, kind}
end
