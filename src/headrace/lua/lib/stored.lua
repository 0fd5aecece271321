-- The fields of a job that is kept in a hash, flat; of somebody else's bytes, a job whose payload they are.
local function stored(body)
  local readable, fields = pcall(cmsgpack.unpack, body)
  if not readable or type(fields) ~= 'table' or #fields == 0 or #fields % 2 > 0 then return {'data', body} end
  for i = 1, #fields do
    if type(fields[i]) ~= 'string' then return {'data', body} end
  end
  return fields
end
