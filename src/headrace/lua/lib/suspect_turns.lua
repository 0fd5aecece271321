-- While suspects wait, suspects and other jobs take turns. 'turn' in `deaths` is '<turn> <worker> <since>'. The turn is
-- 's' for a suspect, or 'o' for other jobs, so neither waits for the other for ever. The worker in it has jobs, and
-- gets no more until it holds none: then it gets a suspect. One worker of a queue does so at a time, for at most as
-- long as a lease, and then none does for as long: so long jobs do not stop a queue.
-- @include levels
-- @include suspects
function suspects.turn(q)
  local turn, worker, since = string.match(redis.call('HGET', q.deaths, 'turn') or '', '^(%a) (%S+) (%d+)$')
  return turn or 's', worker or '-', tonumber(since or 0)
end
function suspects.keep_turn(q, turn, worker, since)
  redis.call('HSET', q.deaths, 'turn', turn .. ' ' .. worker .. ' ' .. string.format('%.0f', since))
end
function suspects.others_first(q) return suspects.turn(q) == 'o' end
-- If *worker*, which holds jobs, is the one that makes room for a suspect: for how many ms. Otherwise nil.
function suspects.makes_room(q, workers, worker, now, lease)
  if not redis.call('XPENDING', q.jobs, 'workers', '-', '+', 1, SUSPECTS)[1] then return nil end
  local turn, chosen, since = suspects.turn(q)
  local over = since > now or now - since >= 2 * lease or tonumber(redis.call('ZSCORE', workers, chosen) or 0) < now
  if over then
    chosen, since = worker, now
    suspects.keep_turn(q, turn, worker, now)
  end
  local left = since + lease - now
  return chosen == worker and left > 0 and left or nil
end
-- *worker* got a suspect: the next turn is for other jobs. Answers for how many ms its process should run nothing else:
-- longer each time that a holder of the suspect died beside jobs of other queues.
function suspects.handed_out(q, worker, lease)
  local _, chosen, since = suspects.turn(q)
  if chosen == worker then chosen, since = '-', 0 end
  suspects.keep_turn(q, 'o', chosen, since)
  return lease * math.max(0, math.min(q.beside, suspects.FORGIVEN) - 2)
end
-- *worker* got other jobs: the next turn is for a suspect. The worker makes room for it, if no other worker does.
function suspects.others_handed_out(q, workers, worker, now, lease)
  local _, chosen, since = suspects.turn(q)
  suspects.keep_turn(q, 's', chosen, since)
  return suspects.makes_room(q, workers, worker, now, lease)
end
