-- The part of a reason that stays with a retried job, and in a history, is bounded; a dead letter keeps all of it.
local REASON_BYTES = 500
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
