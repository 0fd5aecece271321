-- Pass a list to *write* in chunks that one command can take.
local function in_parts(list, write)
  for i = 1, #list, 4000 do write(unpack(list, i, math.min(#list, i + 3999))) end
end
