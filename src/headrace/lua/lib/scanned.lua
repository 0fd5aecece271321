-- Pages of hashes, within a budget.
-- The value of a name in a hash: nil without it, false when the budget is spent.
local function value_of(budget, key, name)
  if fitting(budget, 1) == 0 then return false end
  local value = redis.call('HGET', key, name)
  if value then weigh(budget, {value}) end
  return value or nil
end
-- Call *visit* for about *limit* names of a hash, while the bytes that it answers are within the budget. *cursor*: the
-- cursor of HSCAN, followed by the last visited name if not all names of a page were visited. Answers the next cursor,
-- '0' at the end. Before Redis 7.4 and Valkey 8 names come all at once, or in pages with their values: then *visit*
-- gets the values, too.
local function scanned(budget, key, cursor, limit, visit)
  local at, last = string.match(cursor, '^(%d+) ?(.*)$')
  local seen, bare = 0, true
  repeat
    local page = bare and redis.pcall('HSCAN', key, at, 'COUNT', limit, 'NOVALUES')
    bare = bare and not page.err
    local few = not bare and redis.call('HLEN', key) <= 1000
    if few then page = {'0', redis.call('HKEYS', key)} end
    if not bare and not few then page = redis.call('HSCAN', key, at, 'COUNT', math.max(1, fitting(budget, 8))) end
    local names, values, from = page[2], {}, 1
    if not bare and not few then
      names = {}
      for i = 1, #page[2], 2 do names[#names + 1], values[#values + 1] = page[2][i], page[2][i + 1] end
    end
    for i = 1, last ~= '' and #names or 0 do
      if names[i] == last then from = i + 1 end
    end
    for i = from, #names do
      if fitting(budget, 1) == 0 then
        i = i - 1
        while i > 0 and redis.call('HEXISTS', key, names[i]) == 0 do i = i - 1 end
        return at .. ' ' .. (names[i] or '')
      end
      if values[i] then weigh(budget, {values[i]}) end
      visit(names[i], values[i])
    end
    at, last, seen = page[1], '', seen + #names
  until at == '0' or seen >= limit or fitting(budget, 1) == 0
  return at
end
