-- Runs: the records of jobs that take steps, in the hash `steps`. The field '<id>' is the run itself: its number of
-- records, their bytes, the time of the job's first enqueue, the numbers of its open records by name (waits that have
-- not ended, signals that no wait has taken). '<id>\t<number>' is a record: name, kind
-- (step, once, sleep, wait, signal), ms when it began, ms when it ended (0: not yet), attempt, value (false: none), ms
-- when it is due (0: never), and the traceparent of the delivery that a sleep or wait ended, if any. '<id>\tp' is the
-- progress. The run of a dead letter has '\n<letter>' in place of its id, which another job may take. An id has no
-- control characters, so the names do not collide.
local runs = {RECORDS = 1000, BYTES = 1048576, ASLEEP = 'parked:asleep', WAITS = 'parked:waits'}
-- Whether a consumer holds suspended runs: jobs that sleep, or wait for a signal. Older versions take it for parked
-- jobs of a level that they do not know: they count these jobs, and hand out none.
function runs.suspended(owner) return owner == runs.ASLEEP or owner == runs.WAITS end
-- The state of the jobs that such a consumer holds; nil for another consumer.
function runs.state(owner) return owner == runs.ASLEEP and 'delayed' or owner == runs.WAITS and 'blocked' or nil end
-- The ms when a suspended run is due, 0: never.
function runs.due(asleep, entry)
  local due = redis.call('ZSCORE', asleep, entry)
  return due and due ~= 'inf' and tonumber(due) or 0
end
function runs.field(id, number) return id .. '\t' .. number end
-- A packed list; nil without one, or for foreign bytes.
function runs.unpacked(kept)
  local readable, list = pcall(cmsgpack.unpack, kept)
  return readable and type(list) == 'table' and list or nil
end
function runs.read(steps, id)
  local number, bytes, enq, open = unpack(runs.unpacked(redis.call('HGET', steps, id)) or {})
  if type(number) ~= 'number' or type(open) ~= 'table' then return nil end
  return {number = number, bytes = bytes, enq = enq, open = open}
end
function runs.packed(run) return cmsgpack.pack({run.number, run.bytes, run.enq, run.open}) end
function runs.write(steps, id, run) redis.call('HSET', steps, id, runs.packed(run)) end
-- The names of all fields of a run.
function runs.fields(id, run)
  local fields = {id, runs.field(id, 'p')}
  for i = 1, run.number do fields[i + 2] = runs.field(id, i) end
  return fields
end
-- Remove all records of a run.
function runs.forget(steps, id)
  local run = runs.read(steps, id)
  if run then redis.call('HDEL', steps, unpack(runs.fields(id, run))) end
end
-- The name of the run of a dead letter, in place of its id.
function runs.of_letter(letter) return '\n' .. letter end
-- Move the records of a run to another name, or another hash. Answers their values.
function runs.carry(steps, id, run, to_steps, to_id)
  local names, to_names, kept = runs.fields(id, run), runs.fields(to_id, run), {}
  runs.forget(to_steps, to_id)
  for i, value in ipairs(redis.call('HMGET', steps, unpack(names))) do
    if value then kept[#kept + 1], kept[#kept + 2] = to_names[i], value end
  end
  redis.call('HSET', to_steps, unpack(kept))
  redis.call('HDEL', steps, unpack(names))
  return kept
end
-- Read the run of a job that was first enqueued at *enq*, '' if that is not known, or begin one. The records of an
-- earlier job of this id are removed: a worker of an older version, which knows no records, may have completed it.
function runs.of(steps, id, enq)
  local run = runs.read(steps, id)
  if run and run.enq ~= '' and enq ~= '' and run.enq ~= enq then
    runs.forget(steps, id)
    run = nil
  end
  run = run or {number = 0, bytes = 0, enq = enq, open = {}}
  if run.enq == '' then run.enq = enq end
  return run
end
-- A record that was lost, or overwritten, has no name.
function runs.readable(kept)
  local record = runs.unpacked(kept)
  return record and #record >= 7 and record or {'', 'step', 0, 0, 0, false, 0}
end
function runs.record(steps, id, number) return runs.readable(redis.call('HGET', steps, runs.field(id, number))) end
function runs.records(steps, id, run)
  local fields = {}
  for i = 1, run.number do fields[i] = runs.field(id, i) end
  local rows = #fields > 0 and redis.call('HMGET', steps, unpack(fields)) or {}
  for i = 1, #rows do rows[i] = runs.readable(rows[i]) end
  return rows
end
-- The bytes of a record that count.
function runs.size(record) return #record[1] + (record[6] and #record[6] or 0) end
-- Remove the records of a run from the number *first* on; `write` must follow.
function runs.cut(steps, id, run, first)
  local gone = {}
  for i = first, run.number do
    local record = runs.record(steps, id, i)
    if run.open[record[1]] == i then run.open[record[1]] = nil end
    run.bytes = run.bytes - runs.size(record)
    gone[#gone + 1] = runs.field(id, i)
  end
  run.number = first - 1
  redis.call('HDEL', steps, unpack(gone))
end
-- Write the record *number* of a run, 0 for a new one, and the run. *open*: true if the record is open from now on, false
-- if it is not, nil if it never was. Answers its number, or why it is refused: -1 the run has as many records as it may,
-- -2 it has as many bytes.
function runs.put(steps, id, run, number, record, open)
  local size = runs.size(record)
  if number > run.number then number = 0 end
  if number == 0 then
    if run.number >= runs.RECORDS then return -1 end
  else
    local before = runs.record(steps, id, number)
    size = size - runs.size(before)
    record[3] = before[3]
  end
  if size > 0 and run.bytes + size > runs.BYTES then return -2 end
  if number == 0 then
    run.number = run.number + 1
    number = run.number
  end
  run.bytes = run.bytes + size
  if open ~= nil then run.open[record[1]] = open and number or nil end
  redis.call('HSET', steps, runs.field(id, number), cmsgpack.pack(record), id, runs.packed(run))
  return number
end
