-- The ms when an attempt began: '+ms' before *now*, or '@ms'; 0 if it is not known.
local function began_at(text, now)
  local sign, ms = string.match(text or '', '^([+@])(%d+)$')
  ms = tonumber(ms or 0)
  return sign == '+' and now - ms or ms
end
