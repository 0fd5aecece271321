-- flow_read: read the states of jobs of flows.
-- KEYS   flow (hash), others...
-- ARGV   stages int, cursor, timed flag, items...
-- REPLY  one per item, as far as it goes: {} no such job · {'foreign', key} of another type · {position, stage, state,
--        started, ended, attributes, pending, results, children, cursor, shown, fan, times, why}
-- COST   10 us per item + 4 us per child, at most 500 children, or 1 MiB of results
-- Keys: flow:<id> for each item. Items: `stages` names, then ids. position: active, blocked, done, dead or cancelled.
-- state, started, ended: of the run. results: {stage, bytes, ...}, of its parents' stages and its own. children: of
-- the last fan-out, {name, 'position stage left', kept, result, ...}. pending: how many of them have not ended. fan: the
-- number of that fan-out. times, if `timed`: ms when it began, when it fanned out, and when it left each stage; left:
-- the stage of a child. why: the reason of a job that is dead, or was cancelled. '' is unknown.
-- A reply may end within an item: then the item has a cursor, with which the next call begins at that item, and answers
-- the results and children that follow. shown: how many earlier replies had, 0 at the first part of an item.
local reply, budget, room, begun = {}, new_budget(), 500, false
local names = items + stages - 1 -- in ARGV the names of stages come before the ids of jobs
-- A result within the budget: false when the budget is spent; at least one.
local function result(stage, id)
  if begun and fitting(budget, 1) == 0 then return false end
  local value = redis.call('HGET', flow, 'result:' .. stage .. ':' .. id)
  if value then
    weigh(budget, {value})
    begun = true
  end
  return value or nil
end
local function times(id, children)
  if not timed then return {} end
  local of, its = string.match(id, '^(.*/)[^/]*$'), string.match(children[1] or '', '^(.*/)[^/]*$')
  local asked = {of and 'fanned:' .. of or 'started', 'fanned:' .. (its or '')}
  for k = items, names do asked[#asked + 1] = 'left:' .. ARGV[k] .. ':' .. id end
  local known = redis.call('HMGET', flow, unpack(asked))
  for k = 1, #known do known[k] = known[k] or '' end
  return known
end
local function read(id, from)
  local head = redis.pcall('HMGET', flow, 'at:' .. id, 'state', 'started', 'ended', 'attributes', 'pending:' .. id,
    'children:' .. id, 'fanout:' .. id, 'why:' .. id)
  if head.err then return {'foreign', flow} end
  local how, stage = string.match(head[1] or '', '^(%a+) (%S+)')
  if not how then return {} end
  weigh(budget, {head[5] or ''})
  local shown, fanout = string.match(from, '^(%d+) (%S*)$')
  shown = fanout == (head[8] or '') and tonumber(shown) or 0 -- otherwise it has other children by now
  local results, children, path, node, passed = {}, {}, {}, id, 0
  local all = strings_of(head[7]) or {}
  local fan = string.match(all[1] or '', '/(%d+)/[^/]*$') or ''
  local function row(following)
    return {how, stage, head[2] or '', head[3] or '', head[4] or '', head[5] or '', head[6] or '0', results, children,
            following and following .. ' ' .. (head[8] or '') or '', shown, fan, times(id, all),
            (how == 'dead' or how == 'cancelled') and head[9] or ''}
  end
  while node do
    path[#path + 1] = node
    node = string.match(node, '^(.*)/%d+/[^/]*$')
  end
  for j = #path, 1, -1 do
    for k = items, names do
      passed = passed + 1
      local kept = passed > shown and result(ARGV[k], path[j])
      if passed > shown and kept == false then return row(passed - 1) end
      if kept then results[#results + 1], results[#results + 2] = ARGV[k], kept end
    end
  end
  for _, child in ipairs(all) do
    passed = passed + 1
    if passed > shown then
      if room == 0 then return row(passed - 1) end
      local how_it_ended, last = string.match(redis.call('HGET', flow, 'at:' .. child) or '', '^(%a+) (%S+)')
      local kept = how_it_ended == 'done' and result(last, child)
      if how_it_ended == 'done' and kept == false then return row(passed - 1) end
      local at = #children
      local left = timed and last and redis.call('HGET', flow, 'left:' .. last .. ':' .. child) or ''
      children[at + 1], children[at + 2] = string.match(child, '[^/]*$'), how_it_ended and how_it_ended .. ' ' .. last .. ' ' .. left or ''
      children[at + 3], children[at + 4] = kept and 1 or 0, kept or ''
      room = room - 1
    end
  end
  return row()
end
for i = 1, #ARGV - names do
  if room == 0 or fitting(budget, 1) == 0 then break end
  if i > 1 then flow = others[i - 1] end
  reply[i] = read(ARGV[names + i], i == 1 and cursor or '')
  if reply[i][10] and reply[i][10] ~= '' then break end
end
return reply
