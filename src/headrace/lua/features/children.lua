-- feature children: jobs that runs have started, and wait for.
-- KEYS   links (hash)
-- HOOKS  departs: runs.children_left (links)
-- `links`: id of a child in this queue → its parent: the prefix of the keys of its queue, its name among the runs there,
-- the ms of its first enqueue, the number of the child's record, and the depth of the child. All are in one slot. The
-- record of a child has more parts than others: its state ('' while it runs, then completed, dead, cancelled, deleted,
-- or unknown), the prefix of the keys of its queue, and its id. Its value is the result, or the reason of a failure.
-- @include clock
-- @include runs
-- @include wake_one
runs.CHILD_BYTES = 65536
runs.CHILD_STATES = {'completed', 'dead'}
function runs.child_failed(record) return record[2] == 'child' and record[4] > 0 and record[runs.CHILD_STATE] ~= 'completed' end
-- The open children of a run: the prefix and the id of each, in turn. *room*.left: the bytes of records that a script may
-- still read, if it ends several runs.
function runs.open_children(steps, id, room)
  local run = redis.call('EXISTS', steps) == 1 and runs.read(steps, id)
  local some = {}
  if not run or not run.more.children then return some end
  if room then room.left = room.left - run.bytes - 100 * run.number end
  for _, record in ipairs(runs.records(steps, id, run)) do
    if runs.is_open_child(record) then
      some[#some + 1], some[#some + 2] = record[runs.CHILD_HOME], record[runs.CHILD_ID]
    end
  end
  return some
end
-- Note the end of a child in the record of its parent, and wake the parent if it waits for no other child. *text*: the
-- result, or the reason; a result beyond the bounds of the run is left out, with its size.
function runs.report_child(link, id, state, text)
  local home, parent, enq, number = unpack(runs.unpacked(link) or {})
  local steps = tostring(home) .. 'steps'
  local kept = home and redis.call('HMGET', steps, parent, runs.field(parent, number)) or {}
  local run = runs.head(kept[1])
  if not run or run.enq ~= enq then return end
  local record, now = runs.readable(kept[2]), clock()
  local before = {record[1], '', record[3], 0, 0, record[6]}
  if not runs.is_open_child(record) or record[runs.CHILD_ID] ~= id then return end
  record[4], record[6], record[runs.CHILD_STATE] = now, text or false, state
  run.more.children = run.more.children and run.more.children > 1 and run.more.children - 1 or nil
  local due = not run.more.pending or run.more.pending <= 1 or state ~= 'completed'
  run.more.pending = not due and run.more.pending - 1 or nil
  local fits = #(text or '') <= runs.CHILD_BYTES and runs.put(steps, parent, run, number, record, nil, before) > 0
  if not fits then
    record[6], record[12] = false, #text
    runs.put(steps, parent, run, number, record, nil, before)
  end
  local entry = due and (redis.call('HGET', home .. 'ids', parent) or parent)
  if entry and redis.call('ZSCORE', home .. 'asleep', entry) then
    redis.call('ZADD', home .. 'asleep', string.format('%.0f', now), entry)
    wake_one(home .. 'wake')
  end
end
-- Report the ends of jobs, most of which are no children. Keys of a parent that are of other types stop no end of a
-- child.
function runs.children_ended(q, ids, state, told)
  if q.linked == nil then q.linked = redis.call('EXISTS', q.links) == 1 end
  if not q.linked or #ids == 0 then return end
  for i, link in ipairs(redis.pcall('HMGET', q.links, unpack(ids))) do -- none for a key of another type
    if link then
      redis.call('HDEL', q.links, ids[i])
      pcall(runs.report_child, link, ids[i], state, told and told[ids[i]])
    end
  end
end
-- The same for jobs that leave: see depart.
function runs.children_left(q, ids, what, told)
  runs.children_ended(q, ids, runs.CHILD_STATES[what] or q.removed_as or 'deleted', told)
end
