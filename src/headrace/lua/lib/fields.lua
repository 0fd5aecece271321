-- Split an entry's fields into our own (own.data, own.id, own.attempt, own.enq; of a retried job also own.reason,
-- own.traceback and own.attempts) and the headers, in order. A foreign producer may write anything, and must not stop the queue: an
-- `attempt` that is no number is a header, and an empty `id` counts as none.
local OURS = {
  data = 'data', id = 'id', attempt = 'attempt', enq = 'enq',
  ['headrace-reason'] = 'reason', ['headrace-traceback'] = 'traceback', ['headrace-attempts'] = 'attempts',
}
local ORDER = {'data', 'id', 'attempt', 'enq', 'headrace-reason', 'headrace-traceback', 'headrace-attempts'}
local function parse(fields)
  local own, headers = {}, {}
  for i = 1, #fields, 2 do
    local name, value = fields[i], fields[i + 1]
    local ours = OURS[name]
    if ours == 'attempt' and not (#value < 10 and string.match(value, '^%d+$')) then ours = nil end
    if ours and own[ours] == nil and (ours ~= 'id' or value ~= '') then
      own[ours] = value
    elseif name ~= 'id' or value ~= '' then
      headers[#headers + 1] = name
      headers[#headers + 1] = value
    end
  end
  return own, headers
end
-- Join them again, in the canonical order: entries of one node that share their field list are cheap. Lua can't pass on
-- more than 8,000 values. So a foreign job keeps only 3,500 headers; otherwise it would be lost.
local function compose(own, headers)
  local fields = {}
  for i = 1, #ORDER do
    local value = own[OURS[ORDER[i]]]
    if value then
      fields[#fields + 1] = ORDER[i]
      fields[#fields + 1] = value
    end
  end
  for i = 1, math.min(#headers, 7000) do fields[#fields + 1] = headers[i] end
  return fields
end
-- The fields of a job that goes to another place, in the canonical order, with *id* and *enq* if the job has none; and
-- the id that it had. Nearly all jobs have no other fields of ours; then the fields are not split.
local function carried(fields, id, enq)
  local had = fields[3] == 'id' and fields[4] ~= '' and fields[4] or nil
  local at = had and 5 or 3
  local first = fields[at] == 'enq' and at + 2 or at -- of the headers
  local apart = fields[1] ~= 'data' or #fields > 7000 or not (had or id) or not (first > at or enq)
  for i = first, #fields, 2 do apart = apart or OURS[fields[i]] end
  if apart then
    local own, headers = parse(fields)
    had, own.id, own.enq = own.id, own.id or id, own.enq or enq
    return compose(own, headers), had
  end
  if first == at then
    table.insert(fields, at, enq)
    table.insert(fields, at, 'enq')
  end
  if not had then
    table.insert(fields, 3, id)
    table.insert(fields, 3, 'id')
  end
  return fields, had
end
