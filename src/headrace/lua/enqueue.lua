-- enqueue: add jobs to the back, or to the delayed ones. A job whose id is taken is left as it is.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), stats (hash)
-- ARGV   call, form, items...
-- REPLY  ids and added, in turn: {id, 1 | 0, id, 1 | 0, ...} · form "plain", all added: {id, number} of consecutive
--        ids, or else {id, id, ...}
-- COST   1.5-2 us of server time per plain job of 100 bytes, 4-6 us with id, delay or priority
-- Items of form "plain" are payloads. Items of form "full": id or '', delay, number of fields, then the fields flat,
-- `data` first. levels: the streams of the priority levels after the first, for all forms but "plain". A delayed job
-- needs an id; a job that is due before all others wakes a reader. A sealed shard answers the error SHARDS and the
-- version of the table that sealed it, and adds nothing. Bounded by the client: at most 1,000 items, 1 MiB.
local reply = {}
local listening = listeners(stats, events, 'added')
if listening.sealed then error('SHARDS ' .. listening.sealed, 0) end
if form == 'plain' then
  -- pcall: an error of the first write (OOM, READONLY, WRONGTYPE) comes out with its own code on 6.2 too
  local first = redis.pcall('XADD', jobs, '*', 'data', ARGV[items])
  if type(first) == 'table' and first.err then return first end
  reply[1] = first
  local largest = #ARGV[items]
  for i = items + 1, #ARGV do
    reply[#reply + 1] = redis.call('XADD', jobs, '*', 'data', ARGV[i])
    largest = math.max(largest, #ARGV[i])
  end
  keep_max_job_size(stats, largest)
  redis.call('HINCRBY', stats, 'added', #reply)
  redis.call('HINCRBY', stats, 'enqueued', #reply)
  if listening.added then publish(events, 'added', reply) end
  -- The ids are nearly always consecutive: 20 bytes to record and to send instead of 20,000.
  local ms, number = string.match(first, '(%d+)-(%d+)')
  local last = ms .. '-' .. string.format('%.0f', number + #reply - 1)
  return answer(reply[#reply] == last and {first, #reply} or reply)
end
local length = redis.pcall('XLEN', jobs)
if type(length) == 'table' then return length end
local q = {
  -- @queue without cancels
  levels = level_streams(stats, levels), added = 0, enqueued = 0,
}
require_hashes(ids, bodies)
require_sorted_sets(delayed)
require_streams(wake)
local at, named = items, {}
while at <= #ARGV do -- if one item is bad, no job is added
  due_at(ARGV[at + 1], 0)
  if ARGV[at] ~= '' then named[#named + 1] = ARGV[at] end
  at = at + 3 + 2 * whole(ARGV[at + 2] / 2, 1, 3900)
end
whole(at - #ARGV, 1, 1)
many_of(q, named)
if #named > 0 and listening.cancels then q.cancels = cancellations.present(cancels) end
local now = clock()
at = items
while at <= #ARGV do
  local fields, last = {}, at + 2 + ARGV[at + 2]
  for i = at + 3, last do fields[#fields + 1] = ARGV[i] end
  local id, added = add_job(q, now, ARGV[at], ARGV[at + 1], fields)
  reply[#reply + 1], reply[#reply + 2] = id, added
  at = last + 1
end
if count_added(q) then wake_one(wake) end
if listening.added then
  local ids_added = {}
  for i = 1, #reply, 2 do
    if reply[i + 1] == 1 then ids_added[#ids_added + 1] = reply[i] end
  end
  publish(events, 'added', ids_added)
end
return answer(reply)
