-- The portion of a call of `lease` is at most q.limit jobs, and about q.budget bytes.
-- chunk: jobs of the next read. short: there is no room for one more job.
local portion = {}
function portion.begin(q) q.chunk, q.short = 16, false end
function portion.left(q) return q.limit - #q.taken - #q.fresh / 2 end
-- How many of *most* jobs are read next.
function portion.fits(q, most)
  local number = math.max(0, math.floor((q.budget - q.spent) / q.largest))
  if number < 1 and q.spent < q.budget / 2 then number = 1 end
  q.short = q.short or number < 1 and most > 0
  number = math.min(number, q.chunk, most)
  if number == q.chunk then q.chunk = 4 * q.chunk end
  return number
end
