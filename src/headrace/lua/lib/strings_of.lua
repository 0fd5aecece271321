-- A packed list of strings; nil without one, or for foreign bytes.
local function strings_of(packed)
  local readable, list = pcall(cmsgpack.unpack, packed)
  if not readable or type(list) ~= 'table' then return nil end
  for i = 1, #list do
    if type(list[i]) ~= 'string' then return nil end
  end
  return list
end
