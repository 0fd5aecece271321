-- The fields of a job that is kept in a hash, flat. Foreign bytes become a job with them as its payload.
local function stored(body)
  local fields = strings_of(body)
  return fields and #fields > 0 and #fields % 2 == 0 and fields or {'data', body}
end
