-- The reason of a retry or a death: a text, and the traceback, if it is kept, after the byte 255, which no UTF-8 has.
-- The part that stays with a retried job is bounded, as it is read with the job; a dead letter keeps its whole reason.
local REASON_BYTES, TRACEBACK_BYTES = 500, 4096
-- The first bytes of a text, without the part of a character at their end.
local function shortened(text, most)
  local last = math.min(#text, most)
  while last > most - 4 and last < #text and last > 0 do
    local byte = string.byte(text, last + 1)
    if byte < 128 or byte > 191 then break end
    last = last - 1
  end
  return string.sub(text, 1, last)
end
-- Set the reason and the traceback of *own* as a caller gave them. Answers the whole reason.
local function set_reason(own, given)
  local at = string.find(given, '\255', 1, true)
  local reason = at and string.sub(given, 1, at - 1) or given
  own.reason = reason ~= '' and shortened(reason, REASON_BYTES) or nil
  own.traceback = at and at < #given and shortened(string.sub(given, at + 1), TRACEBACK_BYTES) or nil
  return reason
end
