-- slots: show how many slots of each limit by a header are taken, by the values of the header.
-- KEYS   (none)
-- ARGV   most int
-- REPLY  one per limit by a header: {header, places, more, {value, taken, waits, own, ...}}: places: jobs of one value that the
--        limit admits · taken: leased jobs of this value, the most first, at most `most` values · waits 1: jobs wait for
--        a slot of it · own: places of this value alone, 0 if it has none of its own · more 1: there are values that were not looked at
-- COST   10 us + 5 us per value that is looked at, at most 200
-- Values for whose slots jobs wait are looked at first, others in the order of bytes.
local t = agreed.read(terms)
local function value_in(lp) return string.match(lp, '^%d+:(.*)$') end
local reply, left = {}, 200
for i, limit in ipairs(t and t.slots or {}) do
  reply[i] = {value_in(limit.key), limit.most, 0, {}, found = {}, known = {}}
end
local function taken(slot) return redis.call('ZLEXCOUNT', slots, '[' .. slot .. ' ', '(' .. slot .. ' \255') end
for _, key in ipairs({stopped, slots}) do
  for i, row in ipairs(reply) do
    local prefix = t.slots[i].key
    local from = '[' .. prefix
    while true do
      local slot = holds.slot_in(redis.call('ZRANGEBYLEX', key, from, '(' .. prefix .. '\255', 'LIMIT', 0, 1)[1] or '')
      if not slot then break end
      if not row.known[slot] then
        if left == 0 then
          row[3] = 1
          break
        end
        left, row.known[slot] = left - 1, true
        local own = agreed.own(terms, t.slots[i], slot) or 0
        row.found[#row.found + 1] = {value_in(string.sub(slot, #prefix + 1)), taken(slot), key == stopped and 1 or 0, own}
      end
      from = '(' .. slot .. ' \255'
    end
  end
end
for _, row in ipairs(reply) do
  table.sort(row.found, function(a, b)
    if a[2] ~= b[2] then return a[2] > b[2] end
    if a[3] ~= b[3] then return a[3] > b[3] end
    return a[1] < b[1]
  end)
  for i = 1, math.min(most, #row.found) do
    for j = 1, 4 do row[4][#row[4] + 1] = row.found[i][j] end
  end
end
return reply
