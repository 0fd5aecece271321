-- The reason of a retry or a death: a text, and after the byte 255, which no UTF-8 has, the traceback, if it is kept. In
-- a queue with a history there are two more parts, each after such a byte: the class of the error, and when the attempt
-- began, '+ms' before now, or '@ms'. The part that stays with a retried job is bounded, as it is read with the job; a
-- dead letter keeps its whole reason.
local failures = {TRACEBACK_BYTES = 4096, ATTEMPTS_BYTES = 16384}
-- When an attempt began, in ms, as a caller gave it with its reason; 0 if that is not known.
function failures.began(given, now)
  return began_at(string.match(given, '^[^\255]*\255[^\255]*\255[^\255]*\255([^\255]*)$'), now)
end
-- Set the reason and the traceback of *own* as a caller gave them. Answers the whole reason.
function failures.set_reason(own, given)
  local reason, traceback = string.match(given, '^([^\255]*)\255?([^\255]*)')
  own.reason = reason ~= '' and shortened(reason, REASON_BYTES) or nil
  own.traceback = traceback ~= '' and shortened(traceback, failures.TRACEBACK_BYTES) or nil
  return reason
end
-- Add an attempt to own.attempts, as a caller gave it with its reason: number, ms when it began and ended, worker, class
-- of the error, reason, traceback, with the character 31 between them and 30 between attempts. If they are larger than
-- 16 KiB, the oldest ones go, but for the first. *ran*: the ms that all deliveries of a run took, nil
-- for another job; they stand with the word 'ran' in front of the first attempt that is in them.
function failures.add_attempt(own, given, number, worker, now, ran)
  local class, began = string.match(given, '^[^\255]*\255[^\255]*\255([^\255]*)\255([^\255]*)$')
  if not class then return end
  local rows, size, at = {}, 0, nil
  for row in string.gmatch(own.attempts or '', '[^\30]+') do
    if string.sub(row, 1, 4) == 'ran\31' then at = #rows + 1 else rows[#rows + 1] = row end
  end
  at = at or ran and #rows + 1
  local parts = {
    string.format('%.0f', number), string.format('%.0f', began_at(began, now)), string.format('%.0f', now), worker,
    shortened(class, REASON_BYTES), own.reason or '', own.traceback or '',
  }
  for i = 1, #parts do parts[i] = string.gsub(parts[i], '[\30\31]', ' ') end
  rows[#rows + 1] = table.concat(parts, '\31')
  for i = 1, #rows do size = size + #rows[i] + 1 end
  while size > failures.ATTEMPTS_BYTES and #rows > 2 do
    size = size - #table.remove(rows, 2) - 1
    if at and at > 2 then at = at - 1 end
  end
  if ran then table.insert(rows, at, 'ran\31' .. ran) end
  own.attempts = table.concat(rows, '\30')
end
