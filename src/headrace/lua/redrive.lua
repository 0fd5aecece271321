-- redrive: send dead letters to the back of their queue or level, the oldest first.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), stats (hash)
-- ARGV   call, cursor, limit count, from_step, payload, wanted...
-- REPLY  {redriven, cursor}: cursor is '' when the end was reached · {-1, '', names...}: the run has no such step, but
--        these: nothing was changed
-- COST   about 12 us per job, at most 1 MiB of them
-- cursor: '-' at first; jobs that die after the first call stay. wanted: ids to redrive; none for all. A letter whose
-- id is taken again stays. Attempts start again at zero. A run keeps its records, but begins again if it was undone as it
-- died. With a from_step, for a single id, it keeps only the records that began before that step, and signals that no
-- wait has taken; '' for all. payload: '=' and the new payload, for a single id only; '' for its own.
local q = {
  -- @queue
  levels = level_streams(stats, levels),
}
require_streams(jobs, wake)
require_hashes(ids, released, stats, steps)
require_sorted_sets(flows, cancels)
-- The key of the run to which a job of this id may belong: another key in the header is not ours.
local tag, group = string.match(jobs, '^([^{]*{[^}]*}:)([^:/]*)')
local flow_keys = tag and tag .. group .. ':flow:'
local function run_of(id) return flow_keys and flow_keys .. string.match(id, '^[^/]*') end
-- These numbers without the records of undone steps, unless the run is to go on behind `job.undo()`.
local function without_undone(rows, numbers)
  local others = {}
  for _, number in ipairs(numbers) do
    local kind = rows[number][2]
    if kind == 'undoing' then return numbers end
    if kind ~= 'dying' and kind ~= 'undone' then others[#others + 1] = number end
  end
  return others
end
-- The numbers of the run's records that stay when it is to do its work again from a step on; nil without such a step, and
-- the names of its steps.
local function kept_before(rows)
  local names, numbers, from = {}, {}, nil
  for i, record in ipairs(rows) do
    if record[2] ~= 'signal' and record[1] ~= '' then
      names[#names + 1] = record[1]
      if record[1] == from_step then from = {i, record} end
    end
  end
  if not from then return nil, names end
  for i, record in ipairs(rows) do
    if record[2] == 'signal' or runs.began_before({i, record}, from) then numbers[#numbers + 1] = i end
  end
  return without_undone(rows, numbers)
end
local chosen = {}
for i = wanted, #ARGV do chosen[ARGV[i]] = true end
local listening = listeners(stats, events, 'redriven')
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
  if last and not same_entry(select(2, marked(last)), nonce) then there = true end
  if (wanted > #ARGV or chosen[own.id]) and not there then
    local kept = runs.of_letter(letter)
    local run = runs.read(steps, kept)
    local spent, stays, names = own.attempt, nil, nil
    if payload ~= '' then own.data = string.sub(payload, 2) end
    local rows = run and runs.records(steps, kept, run) or {}
    if from_step == '' then
      stays = runs.anew(rows)
    else
      stays, names = kept_before(rows)
      if not stays then return answer({-1, '', unpack(names)}) end
    end
    redis.call('XDEL', dead, letter)
    if stays then runs.keep(steps, kept, run, stays) end
    if run then runs.carry(steps, kept, run, steps, own.id) end
    local entry = append(q, compose(own, headers))
    redis.call('HSET', ids, own.id, entry)
    if flow then
      set_mark(flows, own.id, REDRIVEN, nonce)
      redis.call('HDEL', steps, runs.why(own.id))
    end
    -- The token goes on growing, but attempts start again: earlier deliveries count as released.
    if spent then redis.call('HSET', released, entry, spent) end
    moved = moved + 1
    ids_moved[moved] = own.id
  end
end
if moved > 0 then redis.call('ZREM', cancels, unpack(ids_moved)) end
if listening.redriven then publish(events, 'redriven', ids_moved) end
return answer({moved, following})
