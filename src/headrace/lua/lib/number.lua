-- A number among the arguments: whole, from *least* (0) to *most* (Lua counts exactly up to it). Anything else is an
-- error, which comes before the first write.
local function whole(value, least, most)
  local number = tonumber(value)
  least, most = least or 0, most or 9007199254740991
  if not number or number % 1 ~= 0 or number < least or number > most then
    error(string.format('ARGUMENT %s: give a whole number from %.0f to %.0f', tostring(value), least, most), 0)
  end
  return number
end
