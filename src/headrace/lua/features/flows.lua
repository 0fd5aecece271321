-- feature flows: what happened to the jobs of flows outside of them.
-- KEYS   flows (zset), blocked (hash)
-- HOOKS  departs: mark_all (flows)
-- Marks: events of a flow's job outside of the flow. CANCELLING: the next sweep of events cancels it.
local NOTHING = 0
local COMPLETED = 1
local DIED = 2
local REMOVED = 3
local REDRIVEN = 4
local CANCELLING = 5
-- A queue's `flows`: id of a flow's job in the queue → its mark * 2^50 + the nonce of its entry into the stage. Another
-- run or fan-out may use an id again, but never a nonce. Rows from before there were nonces have the nonce 0, and their
-- mark stands alone, below every nonce.
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
-- Set the mark *what* of *id*, if it is a flow's job.
local function mark_one(flows, id, what)
  local score = redis.call('ZSCORE', flows, id)
  if not score then return end
  local before, nonce = marked(score)
  if before == CANCELLING and what == COMPLETED then return end -- it stays cancelled, and goes no further
  set_mark(flows, id, what, nonce)
end
-- The same for many jobs, most of which are of no flow.
local function mark_all(q, ids, what)
  if q.marked == nil then q.marked = redis.call('EXISTS', q.flows) == 1 end
  for i = 1, q.marked and #ids or 0 do mark_one(q.flows, ids[i], what) end
end
-- Whether two nonces may belong to the same entry into a stage.
local function same_entry(a, b) return a == b or a == 0 or b == 0 end
