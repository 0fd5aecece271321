-- The job of a dead letter: the fields we own, and its headers. A letter of ours begins with `reason`, `worker` and
-- `released`; all fields of a foreign one are the job's. It has the letter's ID for an id, if it was given none.
-- @include fields
local function letter_of(row)
  local fields, job = row[2], {}
  local ours = fields[1] == 'reason' and fields[3] == 'worker' and fields[5] == 'released'
  for i = ours and 7 or 1, #fields do job[#job + 1] = fields[i] end
  local own, headers = parse(job)
  own.id = own.id or row[1]
  return own, headers
end
