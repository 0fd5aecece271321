-- The job of a dead letter: our own fields, and its headers. Our letters begin with `reason`, `worker` and `released`;
-- all fields of a foreign letter are the job's. A job without an id gets the letter's ID. The cause of its death
-- becomes the reason of its last retry.
local function dead_letter_job(row)
  local fields, job = row[2], {}
  local ours = fields[1] == 'reason' and fields[3] == 'worker' and fields[5] == 'released'
  for i = ours and 7 or 1, #fields do job[#job + 1] = fields[i] end
  local own, headers = parse(job)
  own.id = own.id or row[1]
  if ours and fields[2] ~= '' then own.reason = shortened(fields[2], REASON_BYTES) end
  return own, headers
end
