-- A function that tells by the fields of a job whether it has certain values of headers; nil if no value is wanted.
-- *from*: where they are in ARGV: names of headers, each with '=' and its value, or '-' for jobs without the header. As
-- in lines, the first 500 bytes of a value count.
local function of_value(from)
  if not ARGV[from] then return nil end
  return function(fields)
    for at = from, #ARGV - 1, 2 do
      local has = '-'
      for i = 1, #fields, 2 do
        if fields[i] == ARGV[at] then has = '=' .. string.sub(fields[i + 1], 1, 500) end
      end
      if has ~= ARGV[at + 1] then return false end
    end
    return true
  end
end
