-- A queue's `flows`: id of a flow's job that it holds → what happened to it outside of the flow (0 nothing, 1 completed,
-- 2 died, 3 cancelled or deleted, 4 redriven, 5 is to be cancelled) * 2^50 + the nonce of its entry into the stage. Ids
-- are used again, by another run or fan-out; nonces never. 0 is the nonce of what was written before there were any.
local NONCES = 1125899906842624
local function marked(score)
  score = tonumber(score)
  if score < 8 then return score, 0 end -- from then, too
  return math.floor(score / NONCES), score % NONCES
end
local function set_mark(flows, id, what, nonce)
  redis.call('ZADD', flows, string.format('%.0f', what * NONCES + nonce), id)
end
-- Something happened to *id*, if it is a flow's job.
local function mark(flows, id, what)
  local score = redis.call('ZSCORE', flows, id)
  if not score then return end
  local before, nonce = marked(score)
  if before == 5 and what == 1 then return end -- completed, and cancelled all the same: it goes no further
  set_mark(flows, id, what, nonce)
end
-- Whether two nonces may be of the same entry into a stage.
local function same(a, b) return a == b or a == 0 or b == 0 end
