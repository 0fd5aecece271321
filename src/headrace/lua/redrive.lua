-- redrive: send dead letters to the back of their queue or level, the oldest first.
-- KEYS   lane (string), jobs (stream), wake (stream), ids (hash), released (hash), dead (stream), stats (hash),
--        events (channel), flows (zset), levels...
-- ARGV   call, cursor, limit count, wanted...
-- REPLY  {redriven, cursor}: cursor is '' when the end was reached
-- COST   about 12 us per job, at most 1 MiB of them
-- cursor: '-' at first; jobs that die after the first call stay. wanted: ids to redrive; none for all. A letter whose
-- id is taken again stays. Attempts start again at zero.
-- @include dead_letter_job
-- @include fields
-- @include last_entry_id
-- @include levels
-- @include marks
-- @include page
-- @include publish
-- @include record
-- @include require_types
local known = recorded()
if known then return known end
local q = {jobs = jobs, wake = wake, stats = stats, levels = level_streams(stats, levels)}
require_streams(jobs, wake)
require_hashes(ids, released, stats)
require_sorted_sets(flows)
-- The key of the run to which a job of this id may belong: another key in the header is not ours.
local tag, group = string.match(jobs, '^([^{]*{[^}]*}:)([^:/]*)')
local runs = tag and tag .. group .. ':flow:'
local function run_of(id) return runs and runs .. string.match(id, '^[^/]*') end
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
    local spent = own.attempt
    redis.call('XDEL', dead, letter)
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
