-- The picks of a queue with terms, by start-time fair queueing: see docs/explanation/fairness.md. A call reads what it
-- needs of nodes and lines, plans in memory, and then writes all at once (see filing). Times are us.
-- @feature limits
-- @include agreed
-- @include held
-- @include rates
local picking, push, sink, pop = {CHILDREN = 1000}, nil, nil, nil
do -- a heap
local function in_order(a, b) return a.at < b.at or a.at == b.at and a.key < b.key end
function push(heap, it)
  local n = #heap + 1
  while n > 1 do
    local up = math.floor(n / 2)
    if in_order(heap[up], it) then break end
    heap[n] = heap[up]
    n = up
  end
  heap[n] = it
end
function sink(heap, it) -- in place of the first
  local n, size = 1, #heap
  while true do
    local child = 2 * n
    if child > size then break end
    if child < size and in_order(heap[child + 1], heap[child]) then child = child + 1 end
    if not in_order(heap[child], it) then break end
    heap[n] = heap[child]
    n = child
  end
  heap[n] = it
end
function pop(heap)
  local last = table.remove(heap)
  if #heap > 0 then sink(heap, last) end
end
end
function picking.context(q, t, exact)
  q.t, q.exact, q.leafy = t, exact, t.number == t.depth -- leafy: a value has one line, of the same text
  q.bare = q.leafy and #t.slots + #q.limits == 0 -- its values are of no use, except that of the first level
  q.nodes, q.all_nodes, q.asked = {}, {}, {}
  q.lines_at, q.all_lines, q.asked_lines, q.coming, q.slots_at = {}, {}, {}, {}, {}
  q.picks, q.costs, q.mine, q.ends, q.took, q.opened, q.seen, q.later = {}, {}, {}, {}, {}, {}, 0, 0
end
-- A node. at: its next start; was: the stored one, false without; ready: stored as ready; alive: a job of it may run.
-- All fields are given at once, at most 16 where there may be many: a table that grows, or is larger, costs more than
-- all else here.
function picking.node(q, key, parent)
  local it = q.nodes[key]
  if it then return it end
  local deep = parent and parent.deep + 1 or 0
  if deep == q.t.depth and q.leafy then
    it = {
      key = key, parent = parent, at = 0, was = false, mean = 0, weight = 1, running = 0, ready = false, alive = false,
      p50 = 0, p95 = 0, queued = false, picked = false, changed = false, value = true, line = false,
    }
  else
    it = {
      key = key, parent = parent, at = 0, was = false, mean = 0, weight = 1, running = 0, ready = false, alive = false,
      p50 = 0, p95 = 0, queued = false, picked = false, changed = false, value = deep == q.t.depth, deep = deep,
      virtual = 0, children = {}, heap = false, listed = false, last = false, further = false, moved = false,
    }
  end
  q.nodes[key], q.all_nodes[#q.all_nodes + 1], q.asked[#q.asked + 1] = it, it, it
  if parent then parent.children[#parent.children + 1] = it end
  return it
end
-- The node of the value to which a line belongs. *ends*: where the values in its text end.
function picking.value(q, key, ends)
  local node = picking.node(q, string.sub(key, 1, 1), false)
  for i = 1, q.t.depth do node = picking.node(q, string.sub(key, 1, ends[i] or #key), node) end
  return node
end
-- A line. fronts: jobs of this call's look, by their places; news: the same behind all stored ones; chunk: stored ones;
-- kept: the place by which it is in `ready`; came: jobs or a slot came, or jobs were picked.
-- *value*: its node, if that is known.
function picking.line(q, key, values, value)
  local it = q.lines_at[key]
  if it then return it end
  if q.bare then
    if not value and q.t.depth < 2 then
      value = picking.node(q, string.sub(key, 1, 1), false)
      if q.t.depth == 1 then value = picking.node(q, key, value) end
    end
    it = {
      key = key, value = value or picking.value(q, key, select(2, agreed.split(key))), fronts = false, front_at = 1,
      news = false, new_at = 1, chunk = false, chunk_at = 1, size = false, done = not q.has_lines, last = false,
      alive = true, came = false, picked = false, text = false,
    }
    it.value.line, q.lines_at[key], q.all_lines[#q.all_lines + 1] = it, it, it
    return it
  end
  local split, ends = agreed.split(key)
  values = values or split
  it = {
    key = key, value = picking.value(q, key, ends), at = '', fronts = false, front_at = 1, news = false, new_at = 1,
    chunk = false, chunk_at = 1, size = false, done = not q.has_lines, last = false, slots = false, buckets = false,
    stop = false, rest = false, alive = true, kept = false, came = false, picked = false, queued = false, text = false,
  }
  for _, slot in ipairs(q.t.slots) do
    if values[slot.at] then
      it.slots = it.slots or {}
      local name = slot.key .. holds.lp(values[slot.at])
      local there = q.slots_at[name] or {key = name, most = slot.most, used = false}
      q.slots_at[name], it.slots[#it.slots + 1] = there, there
    end
  end
  for _, limit in ipairs(q.limits) do
    local text = limit.name ~= '' and values[q.t.want[limit.name]]
    if text then
      it.buckets = it.buckets or {}
      it.buckets[#it.buckets + 1] = {limit = limit, member = 'k' .. #limit.name .. limit.name .. text}
    end
  end
  q.lines_at[key], q.all_lines[#q.all_lines + 1] = it, it
  if q.leafy then
    it.value.line = it
  else
    it.value.children[#it.value.children + 1], q.asked_lines[#q.asked_lines + 1] = it, it
  end
  return it
end
-- Whether a job of this line may run now; if not, a slot stops it, or it rests until its rate limits have tokens.
function picking.may_run(q, line)
  if not (line.slots or line.buckets) then return true end
  line.stop, line.rest = false, false
  for _, slot in ipairs(line.slots or {}) do
    slot.used = slot.used or redis.call('ZLEXCOUNT', q.slots, '[' .. slot.key .. ' ', '(' .. slot.key .. '!')
    if slot.used >= slot.most then
      line.stop = slot.key
      return false
    end
  end
  for _, one in ipairs(line.buckets or {}) do
    local first = bucket(q.rates, one.member, q.exact, one.limit) - (one.limit.burst - 1) * one.limit.step
    if first > q.exact + EARLY then line.rest = math.max(line.rest or 0, first) end
  end
  return not line.rest
end
-- The next job of a line: a stored member, or a row of the look; and whether it is stored.
function picking.next_of(q, line)
  local kept = line.chunk and line.chunk[line.chunk_at]
  if not kept and not line.done then
    local heap = q.leafy and line.value.parent and line.value.parent.heap or line.value.heap
    local portion = heap and heap[2] and math.ceil(q.limit / #heap) + 1 or q.portion -- the picks are shared by others
    line.size = math.min(line.size and 4 * line.size or portion, q.limit + 1)
    local from = line.last and '(' .. line.last or '[' .. line.key .. ' '
    line.chunk = redis.call('ZRANGEBYLEX', q.lines, from, '(' .. line.key .. '!', 'LIMIT', 0, line.size)
    line.chunk_at, line.done, line.last = 1, #line.chunk < line.size, line.chunk[#line.chunk] or line.last
    kept = line.chunk[1]
  end
  local front = line.fronts and line.fronts[line.front_at]
  if front and (not kept or front.place < string.sub(kept, #line.key + 2)) then return front, false end
  if kept then return kept, true end
  return line.news and line.news[line.new_at], false
end
function picking.place_of(q, line)
  local job, stored = picking.next_of(q, line)
  if not job then return '' end
  return stored and string.match(job, '^%w+', #line.key + 2) or job.place or holds.place(job[1])
end
-- Read the stored parts of nodes and lines. The mean of a node above values is the number of its stored children.
function picking.load(q)
  local asked, lines, names, weights, above = q.asked, q.asked_lines, {}, {}, {}
  for i = 1, #asked do
    names[i] = 'a' .. asked[i].key
    if asked[i].deep then above[#above + 1] = asked[i] end
  end
  for i = 1, #lines do names[#names + 1] = 'l' .. lines[i].key end
  for i = 1, #above do names[#names + 1] = 'v' .. above[i].key end
  local kept = {}
  for i = 1, #names, 4000 do
    local some = redis.call('HMGET', q.shares, unpack(names, i, math.min(#names, i + 3999)))
    for j = 1, #some do kept[i + j - 1] = some[j] end
  end
  if q.t.weighted then
    for i = 1, #asked do weights[i] = 'w' .. string.sub(asked[i].key, 2) end
    weights = #weights > 0 and redis.call('HMGET', q.terms, unpack(weights)) or weights
  end
  for i = 1, #asked do
    local it, parent = asked[i], asked[i].parent
    if q.t.weighted then it.weight = tonumber(weights[i] or 1) end
    if parent and kept[i] then
      local start, mean, running, ready, p50, p95 = string.match(kept[i], '^(%d+) (%d+) (%d+) (%d) (%d+) (%d+)$')
      it.was, it.mean, it.running, it.ready = tonumber(start), tonumber(mean), tonumber(running), ready == '1'
      it.p50, it.p95, it.at = tonumber(p50), tonumber(p95), it.was
    end
    it.alive = it.ready
  end
  for i = 1, #lines do lines[i].kept, lines[i].alive = kept[#asked + i], kept[#asked + i] ~= false end
  for i = 1, #above do above[i].virtual = tonumber(kept[#asked + #lines + i] or 0) end
  q.asked, q.asked_lines = {}, {}
end
-- A child takes part, and so do the nodes above it. One that had no job which may run begins at the virtual time, unless
-- its next start is later: it has no credit, and keeps its debt.
function picking.join(it)
  while it.parent do
    local parent = it.parent
    if not it.alive then
      it.alive, it.changed = true, true
      it.at = math.max(it.at, parent.virtual)
    end
    if not it.queued then
      it.queued, parent.heap = true, parent.heap or {}
      push(parent.heap, it)
    end
    it = parent
  end
end
-- Apply the ends since the last call, in their order.
function picking.settle(q)
  for _, ended in ipairs(q.ends) do
    local it, ran = ended.line.value, ended.ran
    if not ended.costed then
      local before = it.mean > 0 and it.mean or q.t.mean
      it.mean = math.max(1, before + (ran - before) / 8)
      q.t.mean = math.max(1, q.t.mean + (ran - q.t.mean) / 8)
    end
    while it.parent do
      if not ended.costed then it.at = math.max(0, it.at + (ran - ended.charge) / it.weight) end
      it.running, it.changed = math.max(0, it.running - 1), true
      it = it.parent
    end
  end
  for _, ended in ipairs(q.ends) do -- it may be the first now, whatever its stored start was
    if ended.line.value.alive then picking.join(ended.line.value) end
  end
  q.ends = {}
end
-- Read the new nodes and lines; lines to which jobs or slots have come take part, if a job of them may run.
function picking.admit(q)
  if #q.asked + #q.asked_lines > 0 then picking.load(q) end
  picking.settle(q)
  for _, line in ipairs(q.coming) do
    line.came, line.alive = true, picking.may_run(q, line)
    if line.alive then picking.join(line.value) end
  end
  q.coming = {}
end
-- Read the next children of a node that may run: as many as this call may hand out, and one more; and one for each end
-- that moves a child behind its stored start.
function picking.fetch(q, node)
  local key, from, most = node.key, node.last and '(' .. node.last or '[' .. node.key .. ' ', q.limit + 1 + q.later
  local rows = redis.call('ZRANGEBYLEX', q.ready, from, '(' .. key .. '!', 'LIMIT', 0, most)
  node.further, node.last = #rows == most, rows[#rows] or node.last
  q.seen = q.seen + #rows
  local some = {}
  for i = 1, #rows do
    if node.value then
      some[i] = picking.line(q, string.match(rows[i], '^%w+ (.*)$', #key + 2))
    else
      some[i] = picking.node(q, string.sub(rows[i], #key + 19), node)
    end
  end
  node.listed = some
  return some
end
-- Let the children take part that `fetch` has read.
function picking.enter(q, node, some)
  picking.load(q)
  node.heap = node.heap or {}
  for _, it in ipairs(some) do
    if not node.value then
      if it.alive then picking.join(it) end
    elseif it.alive and not it.queued then
      it.queued, it.at = true, picking.place_of(q, it)
      if it.at ~= '' then push(node.heap, it) else it.alive = false end
    end
  end
end
function picking.open(q, node)
  if q.opened[node] then return end
  q.opened[node] = true
  picking.enter(q, node, node.listed or picking.fetch(q, node))
  if node.value then picking.enter(q, node, node.children) end
end
-- The first child has no job that may run. Another one takes its place, if none was picked from it.
function picking.drop(q, node, child)
  child.alive = false
  pop(node.heap)
  if not child.picked and node.further then
    if q.seen >= picking.CHILDREN then q.passed = true else picking.enter(q, node, picking.fetch(q, node)) end
  end
end
-- The line of a value from which the next job comes, and this job as `next_of` has it; nil if it has none.
function picking.line_of(q, value)
  if q.leafy then
    local line, job, stored = value.line or picking.line(q, value.key, nil, value), nil, nil
    if line.alive then job, stored = picking.next_of(q, line) end
    if job and picking.may_run(q, line) then return line, job, stored end
    line.alive, line.came = false, true
    return nil
  end
  picking.open(q, value)
  while value.heap[1] do
    local line = value.heap[1]
    if picking.may_run(q, line) then return line, picking.next_of(q, line) end
    line.came = true
    picking.drop(q, value, line)
  end
end
-- Charge a job to its value and to the nodes above, and take its slots and tokens.
function picking.charge(q, line, job, entry)
  local value, cost = line.value, q.costs[entry]
  local charge = cost and cost * q.t.mean or value.mean > 0 and value.mean or q.t.mean
  charge = math.max(1, math.floor(charge + 0.5))
  line.came, line.picked = true, true
  q.picks[#q.picks + 1] = {entry = entry, line = line, charge = charge, cost = cost, job = job}
  for i = 1, line.slots and #line.slots or 0 do line.slots[i].used = line.slots[i].used + 1 end
  for i = 1, line.buckets and #line.buckets or 0 do
    local one = line.buckets[i]
    set_score(one.member, bucket(q.rates, one.member, q.exact, one.limit) + one.limit.step)
  end
  local it = value
  while it.parent do
    it.parent.virtual, it.parent.moved = it.at, true
    it.at = math.min(9e15, it.at + charge / it.weight)
    it.running, it.picked, it.changed = it.running + 1, true, true
    it = it.parent
  end
end
-- Take the next job of a line.
function picking.take(q, line, job, stored)
  if stored then
    line.chunk_at = line.chunk_at + 1
  elseif line.fronts and line.fronts[line.front_at] == job then
    line.front_at = line.front_at + 1
  else
    line.new_at = line.new_at + 1
  end
  if not stored then return picking.charge(q, line, job, job[1]) end
  local at = #line.key + 2
  local entry, after = holds.entry_at(job, at)
  q.took[#q.took + 1] = job
  if q.mine[entry] then return end -- the look has it, too
  q.mine[entry] = true
  local front, cost = false, nil
  if after <= #job then
    front, cost = string.match(job, '^(%+?)=?(.*)$', after)
    q.costs[entry] = tonumber(cost)
  end
  picking.charge(q, line, front == '+' and 'front' or 'new', entry)
end
-- Pick jobs below a node, the root of a level. *same*: all of one value.
function picking.pick(q, root, same)
  local path, depth = {}, 0
  while #q.picks < q.limit do
    local node = root
    depth = 0
    if same and q.picks[1] then
      node = q.picks[1].line.value
      if string.sub(node.key, 1, 1) ~= root.key then return end
    end
    while not node.value do
      picking.open(q, node)
      depth = depth + 1
      path[depth] = node
      local child = node.heap[1]
      if not child then break end
      node = child
    end
    local line, job, stored
    if node.value then line, job, stored = picking.line_of(q, node) end
    if line then
      local alone = q.bare -- whether no other value has a job
      for i = 1, depth do alone = alone and not path[i].heap[2] end
      while job do
        picking.take(q, line, job, stored)
        if not alone or #q.picks >= q.limit then break end
        job, stored = picking.next_of(q, line)
      end
      if not q.leafy then
        line.at = picking.place_of(q, line)
        if line.at == '' then picking.drop(q, node, line) else sink(node.heap, line) end
      end
      for i = depth, 1, -1 do
        if #path[i].heap > 1 then sink(path[i].heap, path[i].heap[1]) end
      end
    elseif depth == 0 or node == root then
      return
    else
      picking.drop(q, node.parent, node)
    end
  end
end
