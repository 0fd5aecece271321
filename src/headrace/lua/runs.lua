-- runs: read the heads of runs.
-- KEYS   (none)
-- ARGV   ids...
-- REPLY  for each of the ids {records, began, name, kind, due, build, waits_for, held}, or {} if it has no records: began and due in ms,
--        due 0: never · name, kind: of the sleep or wait that is open, or else of the last record · build: of the worker
--        that began it, or '' · waits_for: the builds that it was held back for, in words, or '' · held: until when
-- COST   5 us + 3 us per run
-- ids: each followed by the ms of the job's first enqueue, '' if unknown.
require_hashes(steps)
local reply = {}
for i = ids, #ARGV, 2 do
  local id, enq = ARGV[i], ARGV[i + 1]
  local run = runs.read(steps, id)
  local head = {}
  if run and run.number > 0 and (run.enq == '' or enq == '' or run.enq == enq) then
    local at = runs.record(steps, id, run.number)
    for _, number in pairs(run.open) do
      local record = runs.record(steps, id, number)
      if record[2] ~= 'signal' and at[4] ~= 0 then at = record end
    end
    head = {run.number, runs.record(steps, id, 1)[3], at[1], at[2], at[7], run.more.build or '', run.more.waits_for or '', run.more.held or 0}
  end
  reply[#reply + 1] = head
end
return reply
