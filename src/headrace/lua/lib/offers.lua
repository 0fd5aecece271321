-- The terms that the workers of a queue declare, and whether all of them agree. The field `offers` of `stats` has the
-- structure that each live worker declared; after an operator's word that word, a tab, and the worker's own. A worker
-- without an entry declared none. It stays when the queue is deleted. The name of a worker behind a line feed has the
-- moment, in ms, of a word that came before its registration.
local offers = {REGISTERS_MS = 60000} -- for which the word of a worker stays that is about to register
function offers.read(kept)
  local readable, found = pcall(cmsgpack.unpack, kept or '')
  return readable and type(found) == 'table' and found or {}
end
-- The structure that counts as the worker's word, and its own.
function offers.counted(entry) return string.match(entry or '', '^[^\t]*') end
function offers.own(entry) return string.match(entry or '', '[^\t]*$') end
-- Record the structure that a worker or an operator declares. Answers whether all live workers declare this structure by now.
function offers.note(stats, workers, mode, worker, structure, now)
  local kept = redis.call('HGET', stats, 'offers')
  local said, left = offers.read(kept), {}
  local new = mode ~= 'again' or not said[worker] and structure ~= ''
  if new then said[worker] = structure end
  local agree = mode == 'force' or offers.counted(said[worker]) == structure
  local names = redis.call('ZRANGEBYSCORE', workers, string.format('%.0f', now), '+inf')
  if mode ~= 'force' then names[#names + 1] = worker end -- a client without a worker registers with its first lease
  for i = 1, #names do
    local name = names[i]
    left[name] = mode == 'force' and structure .. '\t' .. offers.own(said[name]) or said[name]
    agree = agree and offers.counted(left[name]) == structure
  end
  if mode == 'tell' then said['\n' .. worker] = now end
  for mark, at in pairs(said) do
    local name = string.byte(mark) == 10 and string.sub(mark, 2)
    if name and now - at < offers.REGISTERS_MS and (mode == 'tell' and name == worker or left[name] == nil) then
      left[name], left[mark] = said[name], at
    end
  end
  if new and next(left) then
    redis.call('HSET', stats, 'offers', cmsgpack.pack(left))
  elseif new and kept then
    redis.call('HDEL', stats, 'offers')
  end
  return agree
end
-- Keep the options of the terms in words; an option that is not given any more is removed. Answers the version of the
-- declaration, and the options that others declared differently.
function offers.words(stats, words)
  local kept, others, changed = declared.read(stats), {}, false
  for _, name in ipairs({'fair', 'limits', 'each', 'rate', 'weights'}) do
    local before, value = kept[name], words[name] and string.sub(words[name], 1, 200)
    if value and before and before ~= value then others[#others + 1], others[#others + 2] = name, before end
    if before ~= value and (value or name ~= 'rate') then kept[name], changed = value, true end
  end
  if changed then declared.write(stats, kept) end
  return {declared.version(stats), unpack(others)}
end
