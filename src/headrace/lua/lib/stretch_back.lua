-- As stretch, for the entries of a stream from *from* back to *to*.
local function stretch_back(budget, stream, from, to, limit)
  return stretch_by(budget, function(at, n) return redis.call('XREVRANGE', stream, at, to, 'COUNT', n) end, from, limit)
end
