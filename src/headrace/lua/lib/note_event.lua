-- Collect events of the jobs of flows by queue, and publish them at the end.
local function note_event(q, kind, id)
  q.noted = q.noted or {completed = {}, cancelled = {}, dead = {}, added = {}}
  q.noted[kind][#q.noted[kind] + 1] = id
end
local function publish_noted(q, worker)
  local listening = q.noted and listeners(q.stats, q.events, 'completed', 'cancelled', 'dead', 'added') or {}
  for _, kind in ipairs({'completed', 'cancelled', 'dead', 'added'}) do
    if listening[kind] then publish(q.events, kind, q.noted[kind], kind == 'completed' and worker or '') end
  end
end
