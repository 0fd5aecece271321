-- feature runs: the records of jobs that take steps.
-- KEYS   steps (hash), asleep (zset)
-- HOOKS  forgets: runs.wake (asleep), removes: runs.remove (steps)
-- Runs: the records of jobs that take steps, in the hash `steps`. The field '<id>' is the run itself: its number of
-- records, their bytes, the time of the job's first enqueue, the numbers of its open records by name (waits that have
-- not ended, signals that no wait has taken), and by name what few runs have: children, the number of its open children;
-- pending, how many of them end before it goes on; build, of the worker that began it; of a run that was
-- held back for another build: waits_for, that build, and held, until when, in ms; away, if it has started children in
-- other slots; and as the run of a dead letter alias, the field '<id>\ta<enq>', which has its name then. '<id>\t<number>' is a record: name, kind
-- (step, once, undoable, undone, sleep, wait, signal, child; with the name '' undoing, dying), ms when it began, ms when it ended (0: not yet), attempt, value (false: none), ms
-- when it is due (0: never), the traceparent of the delivery that a sleep or wait ended, '' if none, its place among
-- the records that began in the same ms, if that is not its number (a wait has the number of a signal that came before
-- it), the sender of its signal, and when, and in a history the bytes of a value that was left out.
-- '<id>\tp' is the progress. '<id>\td' are the deliveries: the ms that they ran, and of each that was suspended its number,
-- the ms when it began and ended, and its worker, with the character 31 between them and 30 before each. '<id>\tw' is why
-- a flow's job died, until its flow has seen it. The run of a dead letter has '\n<letter>' in place of its id, which another job may take. An id has no control characters, so the
-- names do not collide.
local runs = {
  RECORDS = 1000, BYTES = 1048576, KEPT_BYTES = 65536, DELIVERIES_BYTES = 16384,
  ASLEEP = 'parked:asleep', WAITS = 'parked:waits',
  CHILD_STATE = 13, CHILD_HOME = 14, CHILD_ID = 15, CHILD_DEPTH = 16, -- parts of the record of a child: see children
}
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
function runs.why(id) return id .. '\tw' end
-- A packed list; nil without one, or for foreign bytes.
function runs.unpacked(kept)
  local readable, list = pcall(cmsgpack.unpack, kept)
  return readable and type(list) == 'table' and list or nil
end
function runs.head(kept)
  local number, bytes, enq, open, more = unpack(runs.unpacked(kept) or {})
  if type(number) ~= 'number' or type(open) ~= 'table' then return nil end
  return {number = number, bytes = bytes, enq = enq, open = open, more = type(more) == 'table' and more or {}}
end
function runs.read(steps, id) return runs.head(redis.call('HGET', steps, id)) end
function runs.packed(run) return cmsgpack.pack({run.number, run.bytes, run.enq, run.open, next(run.more) and run.more}) end
function runs.write(steps, id, run) redis.call('HSET', steps, id, runs.packed(run)) end
-- The names of all fields of a run.
function runs.fields(id, run)
  local fields = {id, runs.field(id, 'p'), runs.field(id, 'd')}
  for i = 1, run.number do fields[i + 3] = runs.field(id, i) end
  fields[#fields + 1] = run.more.alias
  return fields
end
-- Remove all records of a run.
function runs.forget(steps, id)
  local run = runs.read(steps, id)
  if run then redis.call('HDEL', steps, unpack(runs.fields(id, run))) end
end
function runs.home_of(steps) return string.sub(steps, 1, -6) end
-- Whether two keys, or prefixes of keys, are in one slot.
function runs.is_near(key, other) return string.match(key, '{[^}]*}') == string.match(other, '{[^}]*}') end
-- The field that has the name of a dead letter's run, for children in other slots: they know its job.
function runs.alias(id, enq) return id .. '\ta' .. enq end
-- Whether children in other slots are still to tell a run their ends.
function runs.waits_away(steps, id)
  local run = redis.call('EXISTS', steps) == 1 and runs.read(steps, id)
  return run and run.more.away and run.more.children
end
function runs.is_open_child(record) return record[2] == 'child' and record[4] == 0 end
-- The parent of a child, as its link has it; nil of another job.
function runs.parent_of(links, id)
  local link = redis.call('HGET', links, id)
  return link and runs.unpacked(link) or nil
end
-- Let the links of a run's open children name its place: it has moved, or its records have other numbers.
function runs.follow(steps, id, rows)
  for number, record in ipairs(rows) do
    local links = runs.is_open_child(record) and record[runs.CHILD_HOME] .. 'links'
    local link = links and runs.is_near(steps, links) and runs.parent_of(links, record[runs.CHILD_ID])
    if link then
      link[1], link[2], link[4] = runs.home_of(steps), id, number
      redis.call('HSET', links, record[runs.CHILD_ID], cmsgpack.pack(link))
    end
  end
end
-- The name of the run of a dead letter, in place of its id.
function runs.of_letter(letter) return '\n' .. letter end
-- Move the records of a run to another name, or another hash. Answers their values.
function runs.carry(steps, id, run, to_steps, to_id)
  local names, to_names, kept = runs.fields(id, run), runs.fields(to_id, run), {}
  if run.more.children then runs.follow(to_steps, to_id, runs.records(steps, id, run)) end
  runs.forget(to_steps, to_id)
  for i, value in ipairs(redis.call('HMGET', steps, unpack(names))) do
    if value then kept[#kept + 1], kept[#kept + 2] = to_names[i], value end
  end
  redis.call('HSET', to_steps, unpack(kept))
  redis.call('HDEL', steps, unpack(names))
  if run.more.away and string.byte(to_id) == 10 then
    run.more.alias = runs.alias(id, run.enq)
    redis.call('HSET', to_steps, run.more.alias, to_id, to_id, runs.packed(run))
  end
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
  run = run or {number = 0, bytes = 0, enq = enq, open = {}, more = {}}
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
-- The records of a run, and last its build, if it has one.
function runs.listed(steps, id, run)
  local rows = runs.records(steps, id, run)
  if run.more.build then rows[#rows + 1] = {run.more.build} end
  return rows
end
-- The names of the steps that are still to be undone, the last first; '' without any.
function runs.to_undo(rows)
  local names = {}
  for i = #rows, 1, -1 do
    if rows[i][2] == 'undoable' then names[#names + 1] = rows[i][1] end
  end
  return table.concat(names, ', ')
end
-- The numbers of the records that stay of a run that has died, and was undone: it begins again. nil for another run.
function runs.anew(rows)
  local numbers, died = {}, false
  for i, record in ipairs(rows) do
    died = died or record[2] == 'dying'
    if record[2] ~= 'dying' and record[2] ~= 'undone' then numbers[#numbers + 1] = i end
  end
  return died and runs.to_undo(rows) == '' and numbers or nil
end
-- The progress and the deliveries of a run, '' without any.
function runs.more(steps, id)
  local progress, deliveries = unpack(redis.call('HMGET', steps, runs.field(id, 'p'), runs.field(id, 'd')))
  return progress or '', deliveries or ''
end
-- Give a record all parts but the last: a packed list has no gaps.
function runs.fill(record)
  record[8] = record[8] or ''
  record[9] = record[9] or false
  record[10] = record[10] or ''
  record[11] = record[11] or 0
end
-- The bytes of records that a script reads for a history.
function runs.room() return {left = runs.BYTES} end
-- The records, the progress and the deliveries of a run as a history keeps them; nil without a run. Values have 64 KiB,
-- together with the names; of others the size is kept. A script reads the records of runs as long as *room*.left is
-- more than 0. Of a later run, one record tells the number of its records.
function runs.kept(steps, id, room)
  local run = redis.call('EXISTS', steps) == 1 and runs.read(steps, id)
  if not run then return nil end
  local progress, deliveries = runs.more(steps, id)
  if room.left <= 0 then return {{{run.number .. ' records', 'omitted', 0, 0, 0, false, 0}}, progress, deliveries} end
  room.left = room.left - run.bytes - 100 * run.number
  local rows, bytes = runs.listed(steps, id, run), 0
  for _, record in ipairs(rows) do
    bytes = bytes + runs.size(record)
    if record[6] and bytes > runs.KEPT_BYTES then
      runs.fill(record)
      record[12] = #record[6]
      record[6] = false
    end
  end
  return {rows, progress, deliveries}
end
-- The run of a job, if there is one: an earlier job of this id was first enqueued at another time.
function runs.of_job(steps, own)
  local run = redis.call('EXISTS', steps) == 1 and runs.read(steps, own.id)
  if run and own.enq and run.enq ~= '' and run.enq ~= own.enq then return nil end
  return run or nil
end
-- Remove the runs of jobs that leave. With *traces* of q, they are kept there for the history; these have the room, too.
function runs.remove(q, ids)
  for _, id in ipairs(ids) do
    if q.traces then q.traces[id] = runs.kept(q.steps, id, q.traces) end
    runs.forget(q.steps, id)
  end
end
-- Forget when suspended runs are due.
function runs.wake(q, entries) redis.call('ZREM', q.asleep, unpack(entries)) end
-- Add the kept runs of ended jobs: see keep_ends.
function runs.traced(q, over)
  for _, one in ipairs(q.traces and over or {}) do one.run = q.traces[one.id] end
  return over
end
-- Add an ended delivery to the deliveries of a run. *began*: in ms, 0 if that is not known. *number*, *worker*: of a
-- suspended delivery; nil of others, as the job knows them. Answers the ms that all deliveries ran.
function runs.delivered(steps, id, began, now, number, worker)
  local field = runs.field(id, 'd')
  local ran, rows = string.match(redis.call('HGET', steps, field) or '', '^(%d+)(.*)$')
  ran = tonumber(ran or 0) + (began > 0 and math.max(0, now - began) or 0)
  rows = rows or ''
  if number then rows = rows .. string.format('\30%.0f\31%.0f\31%.0f\31%s', number, began, now, worker) end
  while #rows > runs.DELIVERIES_BYTES do -- the oldest go, but for the first
    local first, others = string.match(rows, '^(\30[^\30]*)\30[^\30]*(.*)$')
    if not first then break end
    rows = first .. others
  end
  ran = string.format('%.0f', ran)
  redis.call('HSET', steps, field, ran .. rows)
  return ran
end
-- The bytes of a record that count.
function runs.size(record) return #record[1] + (record[6] and #record[6] or 0) end
-- Whether record *a* of a run began before *b*: pairs of number and record.
function runs.began_before(a, b)
  local began, other = a[2][3], b[2][3]
  if began ~= other then return began < other end
  return (a[2][9] or a[1]) < (b[2][9] or b[1])
end
-- Keep the records of a run with these ascending *numbers*, and remove its others. The kept ones get new numbers.
function runs.keep(steps, id, run, numbers)
  local rows, gone, kept, before, open = runs.records(steps, id, run), {}, {}, {}, {}
  local n = 0
  for number = 1, run.number do
    gone[number] = runs.field(id, number)
    if numbers[n + 1] == number then n = n + 1 end
    before[number] = n
  end
  run.bytes = 0
  run.more.children = nil
  local stay = {}
  for i, number in ipairs(numbers) do
    local record = rows[number]
    stay[i] = record
    if runs.is_open_child(record) then run.more.children = (run.more.children or 0) + 1 end
    if run.open[record[1]] == number then open[record[1]] = i end
    if record[9] then record[9] = (before[math.floor(record[9])] or n) + 0.5 end
    run.bytes = run.bytes + runs.size(record)
    kept[2 * i - 1], kept[2 * i] = runs.field(id, i), cmsgpack.pack(record)
  end
  run.number, run.open = n, open
  if run.more.children then runs.follow(steps, id, stay) end
  redis.call('HDEL', steps, unpack(gone))
  redis.call('HSET', steps, id, runs.packed(run), unpack(kept))
end
-- Let a wait take the signal that came before it, the record *number*, which keeps its number.
function runs.take(steps, id, run, number, signal, now, attempt)
  local record = {signal[1], 'wait', now, now, attempt, signal[6], 0, '', run.number + 0.5, signal[10] or '', signal[3]}
  run.open[signal[1]] = nil
  redis.call('HSET', steps, runs.field(id, number), cmsgpack.pack(record), id, runs.packed(run))
end
-- Write the record *number* of a run, 0 for a new one, and the run. *open*: true if the record is open from now on, false
-- if it is not, nil if it never was. Answers its number, or why it is refused: -1 the run has as many records as it may,
-- -2 it has as many bytes. The record of an undoing, of the name '', is never refused. *before*: the record that it
-- replaces, if that was read.
function runs.put(steps, id, run, number, record, open, before)
  local size = runs.size(record)
  if number > run.number then number = 0 end
  if number == 0 then
    if run.number >= runs.RECORDS and record[1] ~= '' then return -1 end
  else
    before = before or runs.record(steps, id, number)
    size = size - runs.size(before)
    record[3] = before[3]
  end
  if size > 0 and run.bytes + size > runs.BYTES and record[1] ~= '' then return -2 end
  if number == 0 then
    run.number = run.number + 1
    number = run.number
  end
  run.bytes = run.bytes + size
  if open ~= nil then run.open[record[1]] = open and number or nil end
  redis.call('HSET', steps, runs.field(id, number), cmsgpack.pack(record), id, runs.packed(run))
  return number
end
