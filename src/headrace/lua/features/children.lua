-- feature children: jobs that runs have started, and wait for.
-- KEYS   links (hash), reported (zset), afar (zset)
-- HOOKS  departs: runs.children_left (links)
-- `links`: id of a child in this queue → its parent: the prefix of the keys of its queue, its name among the runs there,
-- the ms of its first enqueue, the number of the child's record, and the depth of the child. The
-- record of a child has more parts than others: its state ('' while it runs, then completed, dead, cancelled, deleted,
-- or unknown), the prefix of the keys of its queue, and its id. Its value is the result, or the reason of a failure.
-- A parent in another slot learns of the end later. The script of the end keeps a report in the hash
-- `reports:<prefix of the parent's queue>`, by the child's id: the parent's name, the ms of its first enqueue, the number
-- of the record, the state, the text, and its bytes. `reported` has the ids of such children that have ended → until
-- when, in ms: none of them starts again. The record has the depth of the child, too. `afar`, in the parent's queue: the
-- prefixes of the queues in which its runs have children → when one was started, or ended, in ms.
runs.CHILD_BYTES = 65536
runs.DEPTH = 10
runs.children_of = {} -- by the names of runs: their children's ids, with the numbers of the records
runs.REPORT_MS, runs.REPORTED_MS, runs.AGAIN_MS = 2592000000, 600000, 3600000 -- the second: longer than a start may take
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
-- The depth of the next child of a run; nil below the deepest.
function runs.depth_below(links, id)
  local own = runs.parent_of(links, id)
  local depth = (own and own[5] or 0) + 1
  return depth <= runs.DEPTH and depth or nil
end
-- The place of a child's record: the parent's name, its run, the number of the record, and the record. A parent in
-- another slot may have died since, or have records with other numbers.
function runs.place_of_child(steps, link, id)
  local _, parent, enq, number = unpack(link)
  local kept = redis.call('HMGET', steps, parent, runs.field(parent, number))
  local run = runs.head(kept[1])
  if not run or run.enq ~= enq then
    parent = redis.call('HGET', steps, runs.alias(parent, enq))
    run = parent and runs.read(steps, parent)
    kept = {}
  end
  if not run then return nil end
  local record = runs.readable(kept[2])
  if record[runs.CHILD_ID] == id then return parent, run, number, record end
  if not runs.children_of[parent] then -- once a script: it may tell a run of 1,000 children
    runs.children_of[parent] = {}
    for other, row in ipairs(runs.records(steps, parent, run)) do
      if row[2] == 'child' then runs.children_of[parent][row[runs.CHILD_ID]] = other end
    end
  end
  number = runs.children_of[parent][id]
  if number then return parent, run, number, runs.record(steps, parent, number) end
end
-- Note the end of a child in the record of its parent, and wake the parent if it waits for no other child. *text*: the
-- result, or the reason, of *size* bytes; a result beyond the bounds of the run is left out, with its size.
function runs.report_child(link, id, state, text, size)
  local home = link[1]
  local steps = home .. 'steps'
  local parent, run, number, record = runs.place_of_child(steps, link, id)
  if not parent or not runs.is_open_child(record) then return end
  local now, before = clock(), {record[1], '', record[3], 0, 0, record[6]}
  record[4], record[6], record[runs.CHILD_STATE] = now, text or false, state
  run.more.children = run.more.children and run.more.children > 1 and run.more.children - 1 or nil
  local due = not run.more.pending or run.more.pending <= 1 or state ~= 'completed'
  run.more.pending = not due and run.more.pending - 1 or nil
  local fits = size <= runs.CHILD_BYTES and runs.put(steps, parent, run, number, record, nil, before) > 0
  if not fits then
    record[6], record[12] = false, size
    runs.put(steps, parent, run, number, record, nil, before)
  end
  local entry = due and (redis.call('HGET', home .. 'ids', parent) or parent)
  if entry and redis.call('ZSCORE', home .. 'asleep', entry) then
    redis.call('ZADD', home .. 'asleep', string.format('%.0f', now), entry)
    wake_one(home .. 'wake')
  end
end
-- Let the ids of children be taken for *ms* from now on.
function runs.note_reported(reported, ids, ms)
  local now = clock()
  keep_until(reported, ids, now + ms, now)
end
-- Keep the end of a child for a parent in another slot, and tell the parent's workers that there is one.
function runs.keep_report(link, id, state, text, size, links)
  local home = string.sub(links, 1, -6)
  local reports = home .. 'reports:' .. link[1]
  local report = {link[2], link[3], link[4], state, size <= runs.CHILD_BYTES and text or false, size}
  redis.call('HSET', reports, id, cmsgpack.pack(report))
  redis.call('PEXPIRE', reports, runs.REPORT_MS)
  runs.note_reported(home .. 'reported', {id}, runs.REPORT_MS)
  tell_holders(link[1] .. 'control', 'ended ' .. home)
end
function runs.tell_parent(links, link, id, state, text)
  local tell = runs.is_near(links, link[1]) and runs.report_child or runs.keep_report
  tell(link, id, state, text, #(text or ''), links)
end
-- Report the ends of jobs, most of which are no children. Keys of a parent that are of other types stop no end of a
-- child.
function runs.children_ended(q, ids, state, told)
  if q.linked == nil then q.linked = redis.call('EXISTS', q.links) == 1 end
  if not q.linked or #ids == 0 then return end
  for i, link in ipairs(redis.pcall('HMGET', q.links, unpack(ids))) do -- none for a key of another type
    if link then
      redis.call('HDEL', q.links, ids[i])
      pcall(runs.tell_parent, q.links, runs.unpacked(link), ids[i], state, told and told[ids[i]])
    end
  end
end
-- The same for jobs that leave: see depart.
function runs.children_left(q, ids, what, told)
  runs.children_ended(q, ids, runs.CHILD_STATES[what] or q.removed_as or 'deleted', told)
end
