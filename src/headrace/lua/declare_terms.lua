-- declare_terms: declare the terms of a queue: how it shares its workers, and what it limits.
-- KEYS   jobs (stream), wake (stream), stats (hash), workers (zset), terms (hash), shares (hash), lines (zset),
--        ready (zset), stopped (zset), resting (zset), held (hash), slots (zset), busy (zset), settled (list)
-- ARGV   mode, worker, structure, offered, items...
-- REPLY  {state, structure}: state 1 the terms are the queue's · 2 the structure changes: call again · 0 the
--        queue has another structure, and lives: nothing was changed; structure: of the queue, '' for none
-- COST   20 us + 1 us per weight; while the structure changes 1 us per job in a line, at most 500 a call
-- mode: 'ask' changes nothing, but where the queue has no terms; 'serve' is of a worker: its numbers count, and its
-- structure if no other worker lives; 'force' is an operator's. structure: in words, '' for no terms. offered: path, keys and
-- limits in JSON. Items: pairs of a path, as in a node without its level, and its weight.
-- @include agreed
-- @include clock
-- @include require_types
require_hashes(terms, shares, held, stats)
require_sorted_sets(workers, lines, ready, stopped, resting, slots, busy)
local q = {
  jobs = jobs, terms = terms, stats = stats, shares = shares, lines = lines, ready = ready, stopped = stopped,
  resting = resting, held = held, slots = slots, busy = busy, settled = settled,
}
local there = redis.call('HMGET', terms, 'structure', 'next', 'packed')
local before, now = there[1] or '', clock()
local others = redis.call('ZCOUNT', workers, string.format('%.0f', now), '+inf')
if tonumber(redis.call('ZSCORE', workers, worker) or 0) >= now then others = others - 1 end
local packed = structure ~= '' and agreed.packed(offered) or ''
redis.call('XACK', wake, 'workers', '0-0') -- a full server permits this first write
if not there[3] and structure == '' then return {1, ''} end
if there[3] and (there[2] or before) ~= structure then
  if mode == 'ask' or mode == 'serve' and others > 0 then return {0, there[2] or before} end
  redis.call('HSET', terms, 'next', structure, 'next_packed', packed)
  there[2] = structure
end
if there[2] then
  local done = redis.pcall('XPENDING', jobs, 'workers').err and true or agreed.change(q)
  if type(done) == 'boolean' and not done then return {2, before} end
  if structure == '' then return {1, ''} end
elseif mode == 'ask' and there[3] then
  return {1, before}
end
-- The numbers.
local weights = {}
for i = items, #ARGV - 1, 2 do weights[#weights + 1], weights[#weights + 2] = 'w' .. ARGV[i], ARGV[i + 1] end
local gone = {}
for _, field in ipairs(redis.call('HGET', terms, 'weighted') and redis.call('HKEYS', terms) or {}) do
  if string.byte(field) == 119 then gone[#gone + 1] = field end -- 'weighted', too
end
for i = 1, #gone, 4000 do redis.call('HDEL', terms, unpack(gone, i, math.min(#gone, i + 3999))) end
for i = 1, #weights, 4000 do redis.call('HSET', terms, unpack(weights, i, math.min(#weights, i + 3999))) end
if #weights > 0 then redis.call('HSET', terms, 'weighted', '1') end
agreed.write(terms, stats, structure, packed)
if redis.call('EXISTS', stopped) == 1 then
  redis.call('HSET', terms, 'again', '') -- a limit may be higher now
  redis.pcall('XADD', wake, 'MAXLEN', 16, '*', 'w', '1')
end
return {1, structure}
