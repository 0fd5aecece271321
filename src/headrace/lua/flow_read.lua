-- flow_read: jobs of flows as their runs know them.
-- KEYS   flow (hash), others...
-- ARGV   stages int, items...
-- REPLY  one per item, as far as it goes: {} no such job · {'foreign', key} somebody else's · {position, stage, state, started, ended, attributes, pending, results, children}
-- COST   10 us per item + 1 us per child
-- Keys: flow:<id> for each item. Items: `stages` names, then ids. position: active, blocked, done, dead or cancelled.
-- state, started, ended: of the run. results: {stage, bytes, ...}, of its parents' stages and its own. children: of
-- the last fan-out, {name, position, kept, result, ...}. pending: how many of them have not ended.
-- It goes as far as 1,000 children or 1 MiB, and to the end of the item where that is: the others are asked for again.
-- @include strings_of
local reply, looked, bytes = {}, 0, 0
local function count(value) bytes = bytes + #value end
local names = items + stages - 1 -- in ARGV the stages' come before those of the jobs
for i = 1, #ARGV - names do
  if looked >= 1000 or bytes >= 1048576 then break end
  local id = ARGV[names + i]
  if i > 1 then flow = others[i - 1] end
  local head = redis.pcall('HMGET', flow, 'at:' .. id, 'state', 'started', 'ended', 'attributes', 'pending:' .. id, 'children:' .. id)
  local how, stage = string.match(head[1] or '', '^(%a+) (%S+)')
  if head.err then
    reply[i] = {'foreign', flow}
  elseif not how then
    reply[i] = {}
  else
    local results, children, path, node = {}, {}, {}, id
    while node do
      path[#path + 1] = node
      node = string.match(node, '^(.*)/%d+/[^/]*$')
    end
    for j = #path, 1, -1 do
      local fields = {}
      for k = 1, stages do fields[k] = 'result:' .. ARGV[items + k - 1] .. ':' .. path[j] end
      local kept = redis.call('HMGET', flow, unpack(fields))
      for k = 1, stages do
        if kept[k] then
          results[#results + 1], results[#results + 2] = ARGV[items + k - 1], kept[k]
          count(kept[k])
        end
      end
    end
    for _, child in ipairs(strings_of(head[7]) or {}) do
      local end_of, last = string.match(redis.call('HGET', flow, 'at:' .. child) or '', '^(%a+) (%S+)')
      local kept = end_of == 'done' and redis.call('HGET', flow, 'result:' .. last .. ':' .. child)
      local at = #children
      children[at + 1], children[at + 2] = string.match(child, '[^/]*$'), end_of or ''
      children[at + 3], children[at + 4] = kept and 1 or 0, kept or ''
      looked = looked + 1
      count(kept or '')
    end
    count(head[5] or '')
    reply[i] = {how, stage, head[2] or '', head[3] or '', head[4] or '', head[5] or '', head[6] or '0', results, children}
  end
end
return reply
