-- Check the types of keys before anything is written: a script that fails half-way is not undone. *length*: HLEN, ZCARD
-- or XLEN, which answers an error for a key of another type.
local function require_types(length, ...)
  for _, key in ipairs({...}) do
    local reply = redis.pcall(length, key)
    if type(reply) == 'table' then error(reply.err .. ': the key ' .. key, 0) end
  end
end
