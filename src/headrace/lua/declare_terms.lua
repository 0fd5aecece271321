-- declare_terms: declare the terms of a queue: how it shares its workers, and what it limits.
-- KEYS   jobs (stream), wake (stream), stats (hash)
-- ARGV   mode, worker, structure, offered, items...
-- REPLY  {state, structure, version, name, value...}: state 1 these terms are the queue's · 2 its structure changes: call
--        again · 0 the queue has other terms, and keeps them; structure: of the queue, '' for none ·
--        version: of its declaration · options that others declared differently, in their words
-- COST   20 us + 1 us per item + 0.3 us per live worker; while the structure changes 1 us per job in a line, at most
--        500 a call
-- mode: 'tell' = a worker that registers next: no terms change; 'serve' = the first word of a registered worker;
-- 'again' = a worker whose terms were not the queue's asks once more; 'force' = an operator. The numbers count if the
-- structure is the queue's. The structure changes if all live workers declare this one; a worker that said nothing
-- declares none. An operator's word stands for all workers that live then. structure: in words, '' for no terms.
-- offered: path, keys, limits, rates, and the options in words, in JSON. Items: pairs of a path, as in a node without
-- its level, and its weight; and of 'e' with a slot behind it, and the limit of this value.
require_hashes(terms, shares, held, stats)
require_sorted_sets(workers, lines, ready, stopped, resting, slots, busy)
local q = {
  -- @queue
}
local there = redis.call('HMGET', terms, 'structure', 'next', 'packed')
local before = there[3] and (there[2] or there[1]) or ''
local given = cjson.decode(offered)
local packed = structure ~= '' and agreed.packed(given) or ''
redis.call('XACK', wake, 'workers', '0-0') -- a full server permits this first write
local agree = offers.note(stats, workers, mode, worker, structure, clock())
if mode == 'tell' or before ~= structure and not agree then return {0, before, declared.version(stats)} end
-- The structure.
if there[3] and before ~= structure then
  redis.call('HSET', terms, 'next', structure, 'next_packed', packed)
  there[2] = structure
end
if there[3] and there[2] then
  local done = redis.pcall('XPENDING', jobs, 'workers').err and true or agreed.change(q)
  if type(done) == 'boolean' and not done then return {2, before, declared.version(stats)} end
end
local others = offers.words(stats, given.words)
if structure == '' then return {1, '', unpack(others)} end
-- The numbers.
local numbers, weighted = {}, '0'
for i = items, #ARGV - 1, 2 do
  local own = string.byte(ARGV[i]) == 101
  if not own then weighted = '1' end
  numbers[#numbers + 1], numbers[#numbers + 2] = (own and '' or 'w') .. ARGV[i], ARGV[i + 1]
end
local gone = {}
for _, field in ipairs(redis.call('HGET', terms, 'weighted') and redis.call('HKEYS', terms) or {}) do
  if string.find(field, '^[we]') then gone[#gone + 1] = field end -- 'weighted', too
end
for i = 1, #gone, 4000 do redis.call('HDEL', terms, unpack(gone, i, math.min(#gone, i + 3999))) end
for i = 1, #numbers, 4000 do redis.call('HSET', terms, unpack(numbers, i, math.min(#numbers, i + 3999))) end
if #numbers > 0 then redis.call('HSET', terms, 'weighted', weighted) end
agreed.write(terms, stats, structure, packed)
if redis.call('EXISTS', stopped) == 1 then
  redis.call('HSET', terms, 'again', '') -- a limit may be higher now
  redis.pcall('XADD', wake, 'MAXLEN', 16, '*', 'w', '1')
end
return {1, structure, unpack(others)}
