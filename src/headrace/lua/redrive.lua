-- redrive: send dead letters to the back of their queue or level, the oldest first.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), released (hash), dead (stream), stats (hash),
--        events (channel), flows (zset), steps (hash), levels...
-- ARGV   call, cursor, limit count, from_step, payload, wanted...
-- REPLY  {redriven, cursor}: cursor is '' when the end was reached · {-1, '', names...}: the run has no such step, but
--        these: nothing was changed
-- COST   about 12 us per job, at most 1 MiB of them
-- cursor: '-' at first; jobs that die after the first call stay. wanted: ids to redrive; none for all. A letter whose
-- id is taken again stays. Attempts start again at zero. A run keeps its records: with a from_step, for a single id, only
-- the records before that step; '' for all. payload: '=' and the new payload, for a single id only; '' for its own.
-- @include dead_letter_job
-- @include fields
-- @include last_entry_id
-- @include levels
-- @include marks
-- @include page
-- @include publish
-- @include record
-- @include require_types
-- @include runs
local known = recorded()
if known then return known end
local q = {jobs = jobs, wake = wake, stats = stats, levels = level_streams(stats, levels)}
require_streams(jobs, wake)
require_hashes(ids, released, stats, steps)
require_sorted_sets(flows)
-- The key of the run to which a job of this id may belong: another key in the header is not ours.
local tag, group = string.match(jobs, '^([^{]*{[^}]*}:)([^:/]*)')
local flow_keys = tag and tag .. group .. ':flow:'
local function run_of(id) return flow_keys and flow_keys .. string.match(id, '^[^/]*') end
-- The number of the run's record from which on it is to do its work again; nil without one, and the names of its steps.
local function first_to_forget(id, run)
  local names = {}
  for i, record in ipairs(run and runs.records(steps, id, run) or {}) do
    if record[2] ~= 'signal' and record[1] == from_step then return i end
    if record[2] ~= 'signal' then names[#names + 1] = record[1] end
  end
  return nil, names
end
local chosen = {}
for i = wanted, #ARGV do chosen[ARGV[i]] = true end
local heard = listeners(stats, events, 'redriven')
local moved, ids_moved = 0, {}
local page, following = page_until_now(new_budget(), dead, cursor, limit)
for i = 1, #page do
  local letter, own, headers = page[i][1], dead_letter_job(page[i])
  local there, flow, nonce = redis.call('HEXISTS', ids, own.id) == 1, false, 0
  for j = 1, #headers, 2 do
    if headers[j] == 'headrace-flow' then flow = headers[j + 1] == run_of(own.id) end
    if headers[j] == 'headrace-nonce' then nonce = tonumber(string.match(string.sub(headers[j + 1], 1, 16), '^%d+$') or 0) % NONCES end
  end
  -- Another job of this id has left, but its flow has not handled that yet: until then it keeps the id.
  local last = flow and redis.call('ZSCORE', flows, own.id)
  if last and not same(select(2, marked(last)), nonce) then there = true end
  if (wanted > #ARGV or chosen[own.id]) and not there then
    local kept = runs.of_letter(letter)
    local run = runs.read(steps, kept)
    local spent, first, names = own.attempt, nil, nil
    if payload ~= '' then own.data = string.sub(payload, 2) end
    if from_step ~= '' then
      first, names = first_to_forget(kept, run)
      if not first then return answer({-1, '', unpack(names)}) end
    end
    redis.call('XDEL', dead, letter)
    if first then
      runs.cut(steps, kept, run, first)
      runs.write(steps, kept, run)
    end
    if run then runs.carry(steps, kept, run, steps, own.id) end
    local entry = append(q, compose(own, headers))
    redis.call('HSET', ids, own.id, entry)
    if flow then set_mark(flows, own.id, REDRIVEN, nonce) end
    -- The token goes on growing, but attempts start again: earlier deliveries count as released.
    if spent then redis.call('HSET', released, entry, spent) end
    moved = moved + 1
    ids_moved[moved] = own.id
  end
end
if heard.redriven then publish(events, 'redriven', ids_moved) end
return answer({moved, following})
