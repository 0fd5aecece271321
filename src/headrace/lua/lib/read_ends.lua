-- The history of a queue: how and when its jobs ended, by id. `history` of the stats says how many ends are kept, and
-- for how many ms. An end is text: state, ms, attempt (0 unknown), 1 with a result, worker or '-', reason; and where its
-- job is kept, the byte 255, and packed: the job's fields, the ms when its last attempt began, the answer of runs.kept
-- for a run, or false, and the number of its last delivery.
-- The moment before which ends are too old: now, if there is no history.
local function too_old(stats)
  return clock() - tonumber(string.match(redis.call('HGET', stats, 'history') or '', '^%d+ (%d+)$') or 0)
end
-- The end of a job; nil if it is unknown, or too long ago.
local function end_of(ends, stats, id)
  local kept = redis.call('HGET', ends, id)
  if not kept then return nil end
  local at = tonumber(string.match(kept, '^%a+ (%d+) ') or 0)
  return at > too_old(stats) and kept or nil
end
-- The row of an ended job for listings, its state, and its run, if any; nil for foreign bytes. The row's 8th value is the
-- ms when its last attempt began, 0 if that is not known; the row of a run has two more: the number of its last delivery,
-- 0 if that is not known, and its deliveries.
local function ended_row(id, kept)
  local how, at, attempt, _, worker, reason, more = string.match(
    kept or '', '^(%a+) (%d+) (%d+) (%d) (%S+) ([^\255]*)\255?(.*)$'
  )
  if not how then return nil end
  local fields = {'id', id, 'headrace-reason', reason}
  local readable, job = pcall(cmsgpack.unpack, more)
  job = readable and type(job) == 'table' and type(job[1]) == 'table' and job or {{}, 0, false, 0}
  for i = 1, #job[1], 2 do
    if job[1][i] ~= 'id' and job[1][i] ~= 'headrace-reason' then
      fields[#fields + 1], fields[#fields + 2] = job[1][i], job[1][i + 1]
    end
  end
  worker = worker == '-' and '' or worker
  local row = {id, fields, 'ended:' .. how, tonumber(attempt), 0, worker, tonumber(at), tonumber(job[2]) or 0}
  local run = type(job[3]) == 'table' and job[3] or nil
  if run then
    row[9] = tonumber(job[4]) or 0
    row[10] = run[3] or ''
  end
  return row, how, run
end
