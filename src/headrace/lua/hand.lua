-- hand: list the jobs of a shard's outbox that go to other shards, and record which jobs have arrived there.
-- KEYS   (none)
-- ARGV   from int, limit count, come int, over int, items...
-- REPLY  {next, jobs, closing}: next: where to continue, 0 after the last · {name, id, delay, fields} of each job, the
--        oldest first · closing: jobs that have arrived, whose shards still keep their nonces
-- COST   10 us + 3 us per job, at most 1 MiB of them; 2 us per job that has arrived
-- Items: `come` times {name, its name in closing}; `over` names in closing whose nonces are forgotten; and for each
-- shard to leave out now {number, first, last}: its number, and its range of CRC-32. A name is '<CRC-32 of key or id, 8
-- digits> <queue> <nonce>', in closing '<number of the shard> <queue> <nonce>'. from: 0 at first. A job is sent while
-- it is in the outbox. After its arrival it is closing: its shard learns that the job will not be sent again (close),
-- and may forget the nonce.
require_hashes(outbox)
require_sorted_sets(outdue, closing)
local at = items
if #ARGV < items - 1 + 2 * come + over then error('ARGUMENT items: fewer than come and over say', 0) end
local names, kept, now = {}, {}, string.format('%.0f', clock())
for i = 1, come do
  names[i], kept[2 * i - 1], kept[2 * i] = ARGV[at], now, ARGV[at + 1]
  at = at + 2
end
local gone = {unpack(ARGV, at, at + over - 1)}
at = at + over
local avoided, ranges = {}, {}
for i = at, #ARGV, 3 do
  avoided[ARGV[i]] = true
  ranges[#ranges + 1] = {whole(ARGV[i + 1]), whole(ARGV[i + 2])}
end
-- Writes that free memory come first, so that a full server can be drained.
if #gone > 0 then redis.call('ZREM', closing, unpack(gone)) end
if #names > 0 then
  redis.call('HDEL', outbox, unpack(names))
  redis.call('ZREM', outdue, unpack(names))
  redis.call('ZADD', closing, unpack(kept))
end
-- A foreign command may have removed the times: a job without a time would never go.
if from == 0 and redis.call('HLEN', outbox) > redis.call('ZCARD', outdue) then
  scanned(new_budget(), outbox, '0', 1000, function(name) redis.pcall('ZADD', outdue, 'NX', now, name) end)
end

local function left_out(name)
  local sum = #ranges > 0 and tonumber(string.sub(name, 1, 8), 16)
  for i = 1, sum and #ranges or 0 do
    if sum >= ranges[i][1] and sum <= ranges[i][2] then return true end
  end
  return false
end
local budget, jobs, place, full, damaged = new_budget(), {}, from, false, {}
local some = redis.call('ZRANGE', outdue, from, from + 999)
for i = 1, #some do
  if #jobs == limit then full = true end
  if not full and not left_out(some[i]) then
    local packed = value_of(budget, outbox, some[i])
    if packed == false then
      full = true
    else
      local readable, job = pcall(cmsgpack.unpack, packed or '')
      if packed and readable and type(job) == 'table' and type(job[3]) == 'table' then
        jobs[#jobs + 1] = {some[i], job[1], job[2], job[3]}
      else
        damaged[#damaged + 1] = some[i] -- by a foreign command
      end
    end
  end
  if full then break end
  place = place + 1
end
if #damaged > 0 then
  redis.call('ZREM', outdue, unpack(damaged))
  redis.call('HDEL', outbox, unpack(damaged))
  place = place - #damaged
end
local done = {}
for _, member in ipairs(redis.call('ZRANGE', closing, 0, 999)) do
  if #done < limit and not avoided[string.match(member, '^%d+')] then done[#done + 1] = member end
end
return {(full or #some == 1000) and place or 0, jobs, done}
