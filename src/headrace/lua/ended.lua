-- ended: return which jobs have ended, and how, if the history knows.
-- KEYS   jobs (stream), ids (hash), stats (hash)
-- ARGV   items...
-- REPLY  one per job: 0 it has not ended · 1 it is gone · 2 it is gone, but may be a dead letter · its end, as in the
--        history, or only 'cancelled' · -1 ask for it again, as the jobs before it are 1 MiB
-- COST   3 us + 1 us per job; jobs without an id of their own are read, at most 1 MiB of them
-- Items: ids, at most 1,000. The order of an end's parts: state, ms, attempt (0 unknown), 1 with a result, worker or
-- '-', reason; a blank between them.
local q = {
  -- @queue
  levels = level_streams(stats, levels),
}
local reply, budget = {}, new_budget()
local letters = redis.call('XLEN', dead) > 0 and 2 or 1
for i = items, #ARGV do
  local id, answered = ARGV[i], -1
  if fitting(budget, 1) > 0 then
    local is_there, fields = redis.call('HEXISTS', ids, id) == 1, nil
    if not is_there then
      is_there, fields = is_entry_id(q, id)
      if fields then weigh(budget, fields) end
    end
    local its_end = not is_there and end_of(ends, stats, id)
    answered = is_there and 0 or its_end and string.match(its_end, '^[^\255]*')
      or cancellations.has(cancels, id) and 'cancelled' or letters
  end
  reply[i - items + 1] = answered
end
return reply
