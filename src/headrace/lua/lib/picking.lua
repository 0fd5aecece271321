-- The picks of a queue with terms, by deficit round robin over rings of values: see docs/explanation/fairness.md. A call
-- reads what it needs of nodes and lines, plans in memory, and then writes all at once (see filing). Times are whole us.
local picking, push, pop = {QUANTUM = 5000, IDLE = 1000, HALTED = 250, LAST = 9e15}, nil, nil
do -- a ring in memory is a heap: of values by the round and the number of their turn, of lines by the place of the first job
local function comes_before(a, b) return a.round < b.round or a.round == b.round and a.seq < b.seq end
function push(ring, it)
  local n = #ring + 1
  while n > 1 do
    local up = math.floor(n / 2)
    if comes_before(ring[up], it) then break end
    ring[n] = ring[up]
    n = up
  end
  ring[n] = it
end
function pop(ring)
  local it, n = table.remove(ring), 1
  local size = #ring
  if size == 0 then return end
  while 2 * n <= size do
    local child = 2 * n
    if child < size and comes_before(ring[child + 1], ring[child]) then child = child + 1 end
    if comes_before(it, ring[child]) then break end
    ring[n] = ring[child]
    n = child
  end
  ring[n] = it
end
end
function picking.context(q, t, exact)
  q.t, q.exact, q.leafy = t, exact, t.number == t.depth -- leafy: a value has one line, of the same text
  q.bare = q.leafy and #t.slots + #q.limits == 0 and not t.paused -- its values are of no use, except that of the first level
  q.nodes, q.all_nodes, q.asked = {}, {}, {}
  q.lines_at, q.all_lines, q.asked_lines, q.coming, q.slots_at = {}, {}, {}, {}, {}
  q.picks, q.costs, q.mine, q.over, q.took = {}, {}, {}, {}, {}
  q.pauses, q.halts = {}, 0
  if q.has_ready == nil then q.has_ready = redis.call('EXISTS', q.ready) == 1 end
end
local function ring_of(q, from) return {further = q.has_ready, round = from, seq = 0, last = false, most = false} end
-- A node. ring: 'n' new, 'o' old, '' none; round, seq: its turn there; kept: its record; known: it has one.
-- All fields are given at once, at most 16 where there may be many: a table that grows, or is larger, costs more than
-- all else here. Of a node with children: n, o: its rings; turn: the ring that is next; base: the round.
function picking.node(q, key, parent)
  local it = q.nodes[key]
  if it then return it end
  local deep = parent and parent.deep + 1 or 0
  if deep == q.t.depth and q.leafy then
    it = {
      key = key, parent = parent, credit = 0, mean = 0, quantum = picking.QUANTUM, running = 0, ring = '', round = 0,
      seq = 0, known = false, kept = false, p50 = 0, p95 = 0, changed = false, value = true, line = false,
    }
  else
    it = {
      key = key, parent = parent, credit = 0, mean = 0, quantum = picking.QUANTUM, running = 0, ring = '', round = 0,
      seq = 0, known = false, kept = false, p50 = 0, p95 = 0, changed = false, value = deep == q.t.depth, line = false,
      deep = deep, n = ring_of(q, -1), o = ring_of(q, -1), l = not q.leafy and ring_of(q, ''), turn = 'n', base = 0, moved = false,
      opened = false, children = {},
    }
  end
  q.nodes[key], q.all_nodes[#q.all_nodes + 1], q.asked[#q.asked + 1] = it, it, it
  return it
end
-- The node of the value to which a line belongs. *ends*: where the values in its text end.
function picking.value(q, key, ends)
  local node = picking.node(q, string.sub(key, 1, 1), false)
  if q.t.number == 1 and q.t.depth == 1 then return picking.node(q, key, node) end
  ends = ends or q.t.depth > 0 and select(2, agreed.split(key)) or nil
  for i = 1, q.t.depth do node = picking.node(q, string.sub(key, 1, ends[i] or #key), node) end
  return node
end
-- Whether a line or node is of a paused value. *ends*: where the values in its text end.
function picking.halted(q, key, ends)
  for i = 1, math.min(#ends, math.max(1, q.t.depth)) do
    local path = string.sub(key, 2, ends[i])
    if q.pauses[path] == nil then q.pauses[path] = redis.call('HEXISTS', q.terms, 'p' .. path) == 1 end
    if q.pauses[path] then return true end
  end
  return false
end
-- A line. fronts: jobs of this call's look, by their places; news: the same behind all stored ones; chunk: stored ones;
-- kept: its record; alive: it is ready, its value in a ring; came: jobs or a slot came, or jobs were picked; let: a slot
-- lets it in; stop: the slot in whose line it stands; round: where it is in its value;
-- halted: its value is paused. Then it stands in no ring and in no line of a limit, but has its jobs.
-- *value*: its node, if that is known.
function picking.line(q, key, values, value)
  local it = q.lines_at[key]
  if it then return it end
  if q.bare then
    it = {
      key = key, value = value or picking.value(q, key), fronts = false, front_at = 1,
      news = false, new_at = 1, chunk = false, chunk_at = 1, size = false, done = not q.has_lines, last = false,
      alive = true, came = false, text = false,
    }
    it.value.line, q.lines_at[key], q.all_lines[#q.all_lines + 1] = it, it, it
    return it
  end
  local split, ends = agreed.split(key)
  values = values or split
  it = {
    key = key, value = picking.value(q, key, ends), round = '', seq = 0, fronts = false, front_at = 1, news = false, new_at = 1,
    chunk = false, chunk_at = 1, size = false, done = not q.has_lines, last = false, slots = false, buckets = false,
    stop = false, rest = false, alive = false, kept = false, came = false, queued = false, let = false, text = false,
    halted = q.t.paused and picking.halted(q, key, ends),
  }
  for _, slot in ipairs(q.t.slots) do
    if values[slot.at] then
      it.slots = it.slots or {}
      local name = slot.key .. holds.lp(values[slot.at])
      local there = q.slots_at[name] or {key = name, most = agreed.own(q.terms, slot, name) or slot.most, used = false}
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
  if q.leafy then it.value.line = it else it.value.children[#it.value.children + 1] = it end
  if it.slots or not q.leafy then q.asked_lines[#q.asked_lines + 1] = it end
  return it
end
function picking.used(q, slot)
  slot.used = slot.used or redis.call('ZLEXCOUNT', q.slots, '[' .. slot.key .. ' ', '(' .. slot.key .. '!')
  return slot.used
end
-- Whether a job of this line may run now; if not, a slot stops it, or it rests until its rate limits have tokens.
function picking.may_run(q, line)
  if not (line.slots or line.buckets or line.halted) then return true end
  line.stop, line.rest = false, false
  if line.halted then return false end
  for _, slot in ipairs(line.slots or {}) do
    if picking.used(q, slot) >= slot.most then
      line.stop = slot.key
      return false
    end
  end
  for _, one in ipairs(line.buckets or {}) do
    local first = pace.bucket(q.rates, one.member, q.exact, one.limit) - (one.limit.burst - 1) * one.limit.step
    if first > q.exact + EARLY then line.rest = math.max(line.rest or 0, first) end
  end
  return not line.rest
end
-- The next job of a line: a stored member, or a row of the look; and whether it is stored.
function picking.next_of(q, line)
  local kept = line.chunk and line.chunk[line.chunk_at]
  if not kept and not line.done then
    local value = line.value -- at first as many as it has credit for, and the next one
    local number = line.size and 4 * line.size or value.parent and math.ceil(value.credit / (value.mean > 0 and value.mean or q.t.mean)) + 1 or 4
    line.size = math.max(1, math.min(number, q.limit + 1))
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
  local job, is_stored = picking.next_of(q, line)
  if not job then return '' end
  return is_stored and string.match(job, '^%w+', #line.key + 2) or job.place or holds.place(job[1])
end
-- Read the stored parts of nodes and lines. What is in a ring is in it in memory, too.
function picking.load(q)
  local asked, lines, names, weights, above = q.asked, q.asked_lines, {}, {}, {}
  q.asked, q.asked_lines = {}, {}
  for i = 1, #asked do
    names[i] = asked[i].key
    if asked[i].deep and not asked[i].value then above[#above + 1] = asked[i] end
  end
  for i = 1, #lines do names[#names + 1] = 'l' .. lines[i].key end
  for i = 1, #above do names[#names + 1] = 'v' .. above[i].key end
  if not q.seq then names[#names + 1] = 'c' end
  local kept = {}
  for i = 1, #names, 4000 do
    local some = redis.call('HMGET', q.shares, unpack(names, i, math.min(#names, i + 3999)))
    for j = 1, #some do kept[i + j - 1] = some[j] end
  end
  if not q.seq then
    q.seq = tonumber(kept[#names] or 0)
    q.seq_before = q.seq
  end
  if q.t.weighted then
    for i = 1, #asked do weights[i] = 'w' .. string.sub(asked[i].key, 2) end
    weights = #weights > 0 and redis.call('HMGET', q.terms, unpack(weights)) or weights
  end
  for i = 1, #asked do
    local it, parent = asked[i], asked[i].parent
    if weights[i] then it.quantum = math.max(1, math.floor(picking.QUANTUM * tonumber(weights[i]) + 0.5)) end
    if parent and kept[i] then
      local ring
      it.credit, it.mean, it.running, it.round, it.seq, it.p50, it.p95, ring = struct.unpack(agreed.NODE, kept[i])
      it.known, it.kept = true, kept[i]
      if ring > 0 then
        it.ring = string.char(ring)
        push(parent[it.ring], it)
      end
    end
  end
  for i = 1, #lines do
    local it, text = lines[i], kept[#asked + i]
    it.kept = text
    if text and string.byte(text) == 33 then it.stop = string.sub(text, 2) elseif text then it.alive = true end
    if it.alive then picking.queue(q, it) end
  end
  for i = 1, #above do
    local base, turn = string.match(kept[#asked + #lines + i] or '', '^(%d+) (%l)$')
    if base then above[i].base, above[i].turn = tonumber(base), turn end
  end
end
-- The first of a ring, which is stored in the same order.
function picking.head(q, node, name)
  local ring = node[name]
  while ring.further do
    local first = ring[1]
    if first and (first.round < ring.round or first.round == ring.round and first.seq <= ring.seq) then break end
    -- as many as may be visited, if all have the mean of the queue
    ring.most = math.min(ring.most and 4 * ring.most or math.ceil(q.limit * math.min(1, q.t.mean / picking.QUANTUM)) + 1, q.limit + 1)
    local most, prefix = ring.most, node.key .. ' '
    local from, to = '[' .. prefix, '(' .. node.key .. '!'
    if name ~= 'l' then from, to = from .. name, '(' .. prefix .. (name == 'n' and 'o' or 'p') end
    local rows = redis.call('ZRANGEBYLEX', q.ready, ring.last and '(' .. ring.last or from, to, 'LIMIT', 0, most)
    ring.further, ring.last = #rows == most, rows[#rows]
    for i = 1, #rows do
      if name == 'l' then
        local place, line = string.match(rows[i], '^(%w+) (.*)$', #prefix + 1)
        ring.round = place
        picking.line(q, line)
      else
        picking.node(q, string.sub(rows[i], #prefix + 35), node)
      end
    end
    if name ~= 'l' and rows[1] then
      local at = #prefix + 2
      ring.round, ring.seq = tonumber(string.sub(ring.last, at, at + 15)), tonumber(string.sub(ring.last, at + 16, at + 31))
    end
    picking.load(q)
  end
  return ring[1]
end
function picking.turn(q)
  q.seq = q.seq + 1
  return q.seq
end
-- A value whose line is ready enters a ring, and so do the nodes above it: as new, if it had no record, as none of its
-- jobs waited or was leased; else as old, when it may be visited again.
function picking.join(q, it)
  while it.parent and it.ring == '' do
    local parent = it.parent
    it.ring, it.round = 'o', math.max(it.round, parent.base)
    if not it.known then it.ring, it.round, it.credit, it.known = 'n', 0, it.quantum, true end
    it.seq, it.changed = picking.turn(q), true
    push(parent[it.ring], it)
    it = parent
  end
end
-- The visit of the first of a ring is over: it goes on to this ring, '' for none. The rounds that pay its debt are passed
-- over, and the credit of its next visit is given. *had*: a job was taken; if not, it keeps its credit and its round.
function picking.over(q, it, ring, had)
  local parent, from, owed = it.parent, it.ring, math.max(0, -it.credit)
  pop(parent[from])
  local rounds = (had or it.credit <= 0) and math.floor(owed / it.quantum) + 1 or 0
  it.round = math.min(picking.LAST, parent.base + rounds)
  if rounds > 0 then it.credit = rounds * it.quantum - owed end
  it.ring, it.changed, parent.moved = ring, true, true
  if had then parent.turn = from == 'n' and picking.head(q, parent, 'o') and 'o' or 'n' end -- no turn of itself again
  if ring ~= '' then
    it.seq = picking.turn(q)
    push(parent[ring], it)
  end
end
-- A node has no job that may run: it leaves its ring, and so do the nodes above it that have no other child there.
function picking.leave(q, it, had)
  while it.parent do
    picking.over(q, it, '', had)
    it = it.parent
    if picking.head(q, it, 'n') or picking.head(q, it, 'o') then return end
  end
end
-- Apply the ends since the last call, in their order. A correction is bounded to the credit of a visit, either way.
function picking.settle(q)
  local over = q.over
  for i = 1, #over, 4 do
    local it, ran, charge, costed = over[i], over[i + 1], over[i + 2], over[i + 3]
    if not costed then
      if it.known then it.mean = math.max(1, it.mean > 0 and math.floor(it.mean + (ran - it.mean) / 8 + 0.5) or ran) end
      q.t.mean = math.max(1, math.floor(q.t.mean + (ran - q.t.mean) / 8 + 0.5))
    end
    while it.parent do
      if it.known then
        if not costed then it.credit = math.max(-it.quantum, math.min(it.quantum, it.credit + charge - ran)) end
        it.running, it.changed = math.max(0, it.running - 1), true
      end
      it = it.parent
    end
  end
  q.over = {}
end
-- The first line of a limit comes back to its ring.
function picking.let_in(q, slot)
  local member = redis.call('ZRANGEBYLEX', q.stopped, '[' .. slot .. ' ', '(' .. slot .. '!', 'LIMIT', 0, 1)[1]
  if member then picking.let(q, slot, member) end
end
function picking.let(q, slot, member)
  redis.call('ZREM', q.stopped, member)
  local line = picking.line(q, string.sub(member, #slot + 19))
  line.let, q.coming[#q.coming + 1] = true, line
end
-- No job of this line may run, for want of a slot if it has one: then it goes to the end of the line of its limit. The
-- slots that it may have had are for others. Of many halted lines, the next calls turn away the others.
function picking.turn_away(q, line, job)
  line.alive, line.came = false, true
  if q.bare then return end
  if not job then
    line.stop, line.rest = false, false
  elseif line.stop then
    redis.call('ZADD', q.stopped, 0, string.format('%s %s%016.0f%s', line.stop, string.sub(line.key, 1, 1), picking.turn(q), line.key))
    q.has_stopped = true
  end
  if line.halted then
    q.halts = q.halts + 1
    q.passed = q.passed or q.halts > picking.HALTED
  end
  if q.halts > picking.HALTED and line.halted then
    if q.has_stopped and line.slots then redis.call('HSET', q.terms, 'again', '') end
    return
  end
  for _, slot in ipairs(q.has_stopped and line.slots or {}) do
    if picking.used(q, slot) < slot.most then picking.let_in(q, slot.key) end
  end
end
-- A ready line stands among those of its value, once these are asked for.
function picking.queue(q, line)
  local value = line.value
  if q.leafy or line.queued or not value.opened then return end
  line.queued, line.round = true, picking.place_of(q, line)
  push(value.l, line)
end
-- Read the new nodes and lines; lines of this level, nil for all, to which jobs or slots have come take part, if a job of
-- them may run.
function picking.admit(q, level)
  local later = {}
  if #q.asked + #q.asked_lines > 0 then picking.load(q) end
  picking.settle(q)
  while q.coming[1] do
    local some = q.coming
    q.coming = {}
    if #q.asked + #q.asked_lines > 0 then picking.load(q) end
    for _, line in ipairs(some) do
      if level and string.byte(line.key) ~= level then
        later[#later + 1] = line
      else
        local once = line.halted and line.came and not line.let -- it was turned away
        if line.let then line.let, line.stop = false, false end
        if q.leafy then line.alive = not line.value.parent or line.value.ring ~= '' end
        line.came = true
        if not (line.alive or line.stop or once) then
          line.alive = picking.may_run(q, line)
          if line.alive then picking.join(q, line.value) else picking.turn_away(q, line, true) end
        end
        if line.alive then picking.queue(q, line) end
      end
    end
  end
  q.coming = later
end
-- The line of a value from which the next job comes, and this job as `next_of` has it; nil if it has none.
function picking.line_of(q, value)
  if q.leafy then
    local line = value.line or picking.line(q, value.key, nil, value)
    local job, kept = picking.next_of(q, line)
    if job and picking.may_run(q, line) then return line, job, kept end
    picking.turn_away(q, line, job)
    return nil
  end
  if not value.opened then
    value.opened = true
    for _, line in ipairs(value.children) do
      if line.alive then picking.queue(q, line) end
    end
  end
  while true do
    local line = picking.head(q, value, 'l')
    if not line then return nil end
    local job, kept = picking.next_of(q, line)
    if job and picking.may_run(q, line) then return line, job, kept end
    pop(value.l)
    line.queued = false
    picking.turn_away(q, line, job)
    if line.halted and q.halts > picking.HALTED then return nil end
  end
end
-- Charge a job to its value and to the nodes above, and take its slots and tokens.
function picking.charge(q, line, job, entry)
  local it, cost = line.value, q.costs[entry]
  local charge = cost and math.max(1, math.floor(cost * q.t.mean + 0.5)) or it.mean > 0 and it.mean or q.t.mean
  line.came = true
  q.picks[#q.picks + 1] = {entry = entry, line = line, charge = charge, cost = cost, job = job}
  for i = 1, line.slots and #line.slots or 0 do line.slots[i].used = picking.used(q, line.slots[i]) + 1 end
  for i = 1, line.buckets and #line.buckets or 0 do
    local one = line.buckets[i]
    pace.set_score(one.member, pace.bucket(q.rates, one.member, q.exact, one.limit) + one.limit.step)
  end
  while it.parent do
    if not it.known then it.known, it.credit, it.round = true, it.quantum, it.parent.base end -- a suspect's
    it.credit, it.running, it.changed = it.credit - charge, it.running + 1, true
    it = it.parent
  end
end
-- Take the next job of a line.
function picking.take(q, line, job, kept)
  if kept then
    line.chunk_at = line.chunk_at + 1
  elseif line.fronts and line.fronts[line.front_at] == job then
    line.front_at = line.front_at + 1
  else
    line.new_at = line.new_at + 1
  end
  if not kept then
    picking.charge(q, line, job, job[1])
  else
    local at = #line.key + 2
    local entry, after = holds.entry_at(job, at)
    q.took[#q.took + 1] = job
    if not q.mine[entry] then -- else the look has it, too
      q.mine[entry] = true
      local front, cost = false, nil
      if after <= #job then
        front, cost = string.match(job, '^(%+?)=?(.*)$', after)
        q.costs[entry] = tonumber(cost)
      end
      picking.charge(q, line, front == '+' and 'front' or 'new', entry)
    end
  end
  if q.leafy then return end
  pop(line.value.l)
  line.queued = false
  if picking.place_of(q, line) ~= '' then picking.queue(q, line) else picking.turn_away(q, line) end
end
local function has_credit(it)
  while it.parent do
    if it.credit <= 0 then return false end
    it = it.parent
  end
  return true
end
-- The child of a node that is visited next: of each ring by turns, while both have some.
function picking.first(q, node)
  local it = picking.head(q, node, node.turn) or picking.head(q, node, node.turn == 'n' and 'o' or 'n')
  if it and it.ring == 'o' and node.base ~= it.round then node.base, node.moved = it.round, true end
  return it
end
-- Pick jobs below a node, the root of a level: a value is visited for as long as it has credit. *same*: all of one value.
function picking.pick(q, root, same)
  local level, idle = string.byte(root.key), 0
  while #q.picks < q.limit do
    if q.coming[1] then picking.admit(q, level) end
    local node = root
    while not node.value and idle <= picking.IDLE do
      local it = picking.first(q, node)
      if not it then break end
      if it.credit > 0 then node = it else
        picking.over(q, it, 'o', false)
        idle = idle + 1
      end
    end
    if idle > picking.IDLE then
      q.passed = true
      return
    end
    local line, job, kept
    if node.value then line, job, kept = picking.line_of(q, node) end
    if not line then
      if node == root then return end
      local top = node
      while top.parent ~= root do top = top.parent end
      local more = q.halts > picking.HALTED and node.value and not q.leafy and picking.head(q, node, 'l')
      if not more then picking.leave(q, node, false) end
      idle = idle + 1
      if q.halts > picking.HALTED then
        if top.ring ~= '' then picking.over(q, top, 'o', false) end
        return
      end
    else
      repeat
        picking.take(q, line, job, kept)
        line, job, kept = picking.line_of(q, node)
      until not line or #q.picks >= q.limit or not (same or has_credit(node))
      local gone = not line
      while node.parent do
        if gone then picking.over(q, node, '', true) elseif node.credit <= 0 then picking.over(q, node, 'o', true) end
        node = node.parent
        gone = gone and not (picking.head(q, node, 'n') or picking.head(q, node, 'o'))
      end
      if same then return end
    end
  end
end
