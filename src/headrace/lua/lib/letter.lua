-- The job of a dead letter: what we own of it, and its headers. Ours begins with `reason`, `worker` and `released`;
-- what somebody else put there is all the job's. It has the letter's ID for an id, if it was given none.
-- @include fields
local function letter_of(row)
  local fields, job = row[2], {}
  local ours = fields[1] == 'reason' and fields[3] == 'worker' and fields[5] == 'released'
  for i = ours and 7 or 1, #fields do job[#job + 1] = fields[i] end
  local own, headers = parse(job)
  own.id = own.id or row[1]
  return own, headers
end
