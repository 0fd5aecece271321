-- Marks: what happened to a job of a flow, outside of the flow. CANCELLING: the next sweep of events cancels it.
local NOTHING = 0
local COMPLETED = 1
local DIED = 2
local REMOVED = 3
local REDRIVEN = 4
local CANCELLING = 5
-- A queue's `flows`: id of a flow's job that it holds → what happened to it * 2^50 + the nonce of its entry into the
-- stage. Ids are used again, by another run or fan-out; nonces never. 0 is the nonce of what was written before there
-- were any: what happened stands alone there, below every nonce.
local NONCES = 1125899906842624
local LEAST_NONCE = 8
local function marked(score)
  score = tonumber(score)
  if score < LEAST_NONCE then return score, 0 end
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
  if before == CANCELLING and what == COMPLETED then return end -- cancelled all the same: it goes no further
  set_mark(flows, id, what, nonce)
end
-- Whether two nonces may be of the same entry into a stage.
local function same(a, b) return a == b or a == 0 or b == 0 end
