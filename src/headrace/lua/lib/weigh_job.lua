-- Count the bytes of a job that a call has read, and note the largest one.
local function weigh_job(q, fields)
  local bytes = size_of(fields)
  q.spent = q.spent + bytes
  if bytes > q.largest then q.largest = bytes end
end
