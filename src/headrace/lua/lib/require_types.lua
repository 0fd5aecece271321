-- Check the types of keys before the first write: a script that fails half-way is not undone. Reading the length of a
-- key of another type is an error.
local function require_length(reply, key)
  if type(reply) == 'table' then error(reply.err .. ': the key ' .. key, 0) end
  return reply
end
local function require_streams(...)
  for _, key in ipairs({...}) do require_length(redis.pcall('XLEN', key), key) end
end
local function require_hashes(...)
  for _, key in ipairs({...}) do require_length(redis.pcall('HLEN', key), key) end
end
local function require_lists(...)
  for _, key in ipairs({...}) do require_length(redis.pcall('LLEN', key), key) end
end
local function require_sorted_sets(...)
  for _, key in ipairs({...}) do require_length(redis.pcall('ZCARD', key), key) end
end
