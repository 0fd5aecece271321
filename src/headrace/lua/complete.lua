-- complete: remove jobs for good. XDEL decides, so exactly one caller wins each job, and only the winner has effects.
-- KEYS   lane (string), jobs (stream), ids (hash), stats (hash), taken (zset), wake (stream), others...
-- ARGV   call, worker, limit count, with_ids flag, results, follows, items...
-- REPLY  one per job: 1 this call completed it · 2 the same, but without its result, as the server is out of memory · 0
--        another call completed it before, or (fenced) the job is no longer this worker's
-- COST   5 us + 1-2 us per job; with a fence, listeners or notes of entries 1 us more, a result or a follow-up 3-6 us
--        more
-- worker: '': the first caller wins; otherwise the fence. limit: number of jobs. Items: `limit` entries; when fenced
-- `limit` delivery counts; when with_ids is 1 `limit` ids ('' when a job has no field `id`); `results` times {job
-- number, ttl ms, bytes}, each with a key; `follows` times {job number, id, delay, level, number of fields, fields...},
-- each with nine keys: jobs, wake, ids, delayed, bodies, stats, cancels, events, and the stream of its level, of its queue; and
-- '=<job number> <ms>' for each job whose id stays taken for so long; {'><job number>', name, id, delay, number of
-- fields, fields...} of each follow-up for another shard, which goes to the outbox under that name (see hand), with the
-- keys outbox (hash) and outdue (zset) after all others; and for the history, if items are left, `limit` times attempt,
-- worker, when the attempt began, '+ms' before now or '@ms', and the number of the delivery, with blanks between them. At
-- most 1,000 jobs. For a flow's job use flow_advance: after this call, the job moves on later, to the next declared stage,
-- without a result.
results, follows = whole(results, 0, #others), whole(follows, 0, #others)

-- Until a script has written, a server without memory refuses commands that need some. This command adds nothing.
local function is_full()
  local probe = results > 0 and redis.pcall('ZADD', leases, 'XX', 0, '')
  return type(probe) == 'table' and string.find(probe.err, 'used memory', 1, true)
end
-- Keep the results of the jobs that this call completed. *at*: the position of the first. *full*: there is no memory.
local function keep_results(reply, at, full)
  for i = 1, results do
    local number, ttl, result = unpack(ARGV, at + 3 * i - 3, at + 3 * i - 1)
    number = tonumber(number)
    if reply[number] == 1 and full then
      reply[number] = 2
    elseif reply[number] == 1 then
      redis.call('SET', others[i], result, 'PX', ttl)
    end
  end
end
-- The results by the ids of their jobs. *names*, *kept*: the positions of the first id, and of the first result.
local function results_by_id(names, kept)
  local told = {}
  for i = 1, results do
    told[ARGV[names + tonumber(ARGV[kept + 3 * i - 3]) - 1]] = ARGV[kept + 3 * i - 1]
  end
  return told
end

-- 1. The fast path: no fence, follow-ups, flows or listeners, and no data of entries, except slots.
local done, held_texts, left, linked
local after = items + (with_ids and 2 or 1) * limit
if worker == '' and follows == 0 and after + 3 * results > #ARGV then
  local there = redis.call('EXISTS', leases, released, limited, turns, steps, held, with_ids and flows or limited,
    with_ids and links or limited)
  linked = there == 1 and with_ids and redis.call('EXISTS', links) == 1
  if linked then there = 0 end
  held_texts = (there == 1 or there == 2) and redis.call('HMGET', held, unpack(ARGV, items, items + limit - 1))
  -- Beside `held` there may be `leases` with nothing but the shield of lines, which is its last member.
  if held_texts and held_texts[1] and (there == 1 or redis.call('ZRANGE', leases, 0, 0)[1] == 'lines') then
    redis.call('LLEN', settled)
    if redis.call('EXISTS', slots, stopped) > 0 then
      redis.call('ZCARD', slots)
      redis.call('XLEN', wake) -- they fail if these are of other types
    end
    there = 0
  end
  local kept = there == 0 and redis.call('HMGET', stats, 'listening', 'history')
  if kept and not (kept[1] or kept[2]) then
    local of = with_ids and redis.call('HMGET', ids, unpack(ARGV, items + limit))
    for i = 1, results do whole(ARGV[after + 3 * i - 2], 1) end
    local won, reply, full = 0, {}, is_full()
    if redis.call('XACK', jobs, 'workers', unpack(ARGV, items, items + limit - 1)) == limit then
      -- All entries were pending, so they exist; the count is below limit only if XDEL was used by hand.
      won = redis.call('XDEL', jobs, unpack(ARGV, items, items + limit - 1))
      for i = 1, limit do reply[i] = (limit > 1 or won == 1) and 1 or 0 end
    else
      for i = 1, limit do
        reply[i] = redis.call('XDEL', jobs, ARGV[items + i - 1])
        won = won + reply[i]
      end
    end
    if won ~= 0 then redis.call('HINCRBY', stats, 'completed', won) end
    local free = {} -- another job may own the id: a foreign producer added a second job with it
    for i = 1, of and limit or 0 do
      if reply[i] == 1 and of[i] == ARGV[items + i - 1] then free[#free + 1] = ARGV[items + limit + i - 1] end
    end
    if #free > 0 then redis.call('HDEL', ids, unpack(free)) end
    keep_results(reply, after, full)
    if not (held_texts or linked) then return answer(reply, nil, true) end
    done, left = reply, free
  end
end

-- @fragments
if done and held_texts then
  local q = {held = held, slots = slots, settled = settled, stopped = stopped, wake = wake, holding = true, texts = held_texts}
  holds.give_back(q, {unpack(ARGV, items, items + limit - 1)})
  return answer(done, nil, true)
end

-- @fragments
if done then
  runs.children_ended({links = links}, left, 'completed', results_by_id(items + limit, after))
  return answer(done, nil, true)
end

-- @fragments
-- 2. Everything is checked before the first write.
require_hashes(ids, steps)
local listening = listeners(stats, events, 'completed')
local q = {
  -- @queue without asleep, stats, delayed, bodies, cancels
  unnoted = redis.call('EXISTS', leases, released, limited, turns, held) == 0,
}
if not q.unnoted then
  require_sorted_sets(leases, limited, behind)
  require_hashes(released, turns)
  require_streams(wake)
  holds.check(q)
end
if with_ids then require_sorted_sets(flows) end
require_history(listening.history, ends, ended)
-- Positions in ARGV, after the entries.
local counts = items + limit
local names = counts + (worker ~= '' and limit or 0)
local kept = names + (with_ids and limit or 0)
local at = kept + 3 * results
for i = 1, results do whole(ARGV[kept + 3 * i - 2], 1) end
local jobs_after, queues = {}, {} -- queues: by the stream of the level
for i = 1, follows do
  local number, id, delay, level, size = unpack(ARGV, at, at + 4)
  due_at(delay, 0)
  level, size = whole(level, 0, 9), 2 * whole(size / 2, 1, 3900)
  local first = results + 9 * i - 8
  local queue = queues[others[first + 8]]
  if not queue then
    queue = {levels = {n = level, [level] = others[first + 8]}, added = 0, enqueued = 0, ids_added = {}}
    queue.jobs, queue.wake, queue.ids, queue.delayed, queue.bodies, queue.stats = unpack(others, first, first + 5)
    queue.events = others[first + 7]
    require_streams(queue.jobs, queue.wake, others[first + 8])
    require_hashes(queue.ids, queue.bodies, queue.stats)
    require_sorted_sets(queue.delayed)
    queue.cancels = cancellations.present(others[first + 6])
    queues[others[first + 8]], queues[#queues + 1] = queue, queue
  end
  jobs_after[i] = {of = tonumber(number), id = id, delay = delay, queue = queue, fields = {unpack(ARGV, at + 5, at + 4 + size)}}
  at = at + 5 + size
end
local staying = {} -- the job numbers of ids that stay taken, with the ms
while at <= #ARGV and string.sub(ARGV[at], 1, 1) == '=' do
  local number, ms = string.match(ARGV[at], '^=(%d+) (%d+)$')
  staying[#staying + 1], staying[#staying + 2] = whole(number, 1, with_ids and limit or 0), whole(ms, 1)
  at = at + 1
end
if #staying > 0 then require_sorted_sets(taken) end
local away = {} -- follow-ups for other shards
while at <= #ARGV and string.sub(ARGV[at], 1, 1) == '>' do
  local size = 2 * whole(ARGV[at + 4] / 2, 1, 3900)
  due_at(ARGV[at + 3], 0)
  away[#away + 1] = {
    of = whole(string.sub(ARGV[at], 2), 1, limit), name = ARGV[at + 1], id = ARGV[at + 2], delay = ARGV[at + 3],
    fields = {unpack(ARGV, at + 5, at + 4 + size)},
  }
  at = at + 5 + size
end
if #away > 0 then
  require_hashes(others[#others - 1])
  require_sorted_sets(others[#others])
end
local entries = {unpack(ARGV, items, counts - 1)}
local holders = {} -- if the caller does not name itself
if listening.history and at > #ARGV then
  local first, last = ends_of(entries)
  for _, row in ipairs(pending_rows(jobs, 'workers', first, last, limit + 100)) do holders[row[1]] = row[4] .. ' ' .. row[2] end
end
local read, bytes = {}, 0 -- the jobs for the history, 1 MiB of them
for i = 1, listening.history and limit or 0 do
  if bytes >= 1048576 then break end
  read[i] = (redis.call('XRANGE', jobs, entries[i], entries[i])[1] or {})[2]
  if read[i] then read[i] = tried.fields(turns, entries[i], read[i]) end
  for j = 1, #(read[i] or {}) do bytes = bytes + #read[i][j] end
end
local mine = worker ~= '' and held_by(jobs, worker, entries, {unpack(ARGV, counts, names - 1)})

local full = is_full()

-- 3. Remove the jobs before any other write, so that a full server can still be drained.
local won, reply, all, places = 0, {}, true, nil
local leaving, ids_leaving = entries, with_ids and {unpack(ARGV, names, names + limit - 1)}
for i = 1, mine and limit or 0 do all = all and mine[i] end
if not all then
  leaving, ids_leaving, places = {}, with_ids and {}, {}
  for i = 1, limit do
    reply[i] = 0
    if mine[i] then
      leaving[#leaving + 1], places[#places + 1] = entries[i], i
      if with_ids then ids_leaving[#leaving] = ARGV[names + i - 1] end
    end
  end
end
if #leaving > 0 then
  local told = with_ids and results_by_id(names, kept) or {}
  local number, _, gone = depart(q, leaving, {ids = ids_leaving, what = with_ids and COMPLETED, told = told})
  won = number
  for n = 1, #leaving do reply[places and places[n] or n] = gone[n] end
end
if won > 0 then redis.call('HINCRBY', stats, 'completed', won) end
if listening.completed then
  local done = {}
  for i = 1, limit do
    local id = with_ids and ARGV[names + i - 1] or ''
    if reply[i] == 1 then done[#done + 1] = id ~= '' and id or entries[i] end
  end
  publish(events, 'completed', done, worker)
end

local runs_kept = {}
if won > 0 and redis.call('EXISTS', steps) == 1 then
  local room = runs.room()
  for i = 1, limit do
    local id = with_ids and ARGV[names + i - 1] or ''
    if id == '' then id = entries[i] end
    if reply[i] == 1 then
      runs_kept[i] = listening.history and runs.kept(steps, id, room) or nil
      runs.forget(steps, id)
    end
  end
end
if listening.history and won > 0 then
  local over, with, ending = {}, {}, clock()
  for i = 1, full and 0 or results do with[tonumber(ARGV[kept + 3 * i - 3])] = true end
  for i = 1, limit do
    if reply[i] == 1 then
      local id = with_ids and ARGV[names + i - 1] or ''
      local about = ARGV[at + i - 1] or holders[entries[i]] or ''
      local attempt, holder, since, delivery = string.match(about, '^(%d+) (%S*) ?(%S*) ?(%d*)$')
      over[#over + 1] = {
        id = id ~= '' and id or entries[i], attempt = attempt, result = with[i], worker = holder or worker,
        began = began_at(since, ending), fields = read[i], entry = entries[i], run = runs_kept[i],
        delivery = tonumber(delivery),
      }
    end
  end
  keep_ends(listening.history, ends, ended, 'completed', over)
end

-- 4. Follow-ups and results of the jobs that this call completed.
local now = (follows > 0 or #staying > 0 or #away > 0) and clock()
for i = 1, #staying, 2 do
  local id = ARGV[names + staying[i] - 1]
  if reply[staying[i]] == 1 and id ~= '' then keep_until(taken, {id}, now + staying[i + 1], now, 'GT') end
end
for _, job in ipairs(jobs_after) do
  if reply[job.of] == 1 then
    local id, new, first = add_job(job.queue, now, job.id, job.delay, job.fields)
    if first then wake_one(job.queue.wake) end
    if new == 1 then table.insert(job.queue.ids_added, id) end
  end
end
for _, job in ipairs(away) do
  if reply[job.of] == 1 then
    local due = due_at(job.delay, now)
    due = due > 0 and '@' .. string.format('%.0f', due) or ''
    redis.call('HSET', others[#others - 1], job.name, cmsgpack.pack({job.id, due, job.fields}))
    redis.call('ZADD', others[#others], string.format('%.0f', now), job.name)
  end
end
for _, queue in ipairs(queues) do
  count_added(queue)
  if listeners(queue.stats, queue.events, 'added').added then publish(queue.events, 'added', queue.ids_added) end
end
keep_results(reply, kept, full)
return answer(reply)
