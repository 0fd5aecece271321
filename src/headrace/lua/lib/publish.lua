-- Events, published to listeners: a Pub/Sub channel per kind, one message per script call, at most once, and never a
-- reason to fail. `heard` of the stats says that there may be listeners (see listen.lua): reading it costs as much as
-- the check of the key's type, so that a queue without listeners pays nothing. Answers which kinds have listeners now,
-- and `history` of the stats: see keep_ends.
local function listeners(stats, events, ...)
  local told = redis.call('HMGET', stats, 'heard', 'history')
  local heard = {history = told[2]}
  if not told[1] then return heard end
  local kinds, channels = {...}, {}
  for i = 1, #kinds do channels[i] = events .. ':' .. kinds[i] end
  local reply = redis.pcall('PUBSUB', 'NUMSUB', unpack(channels))
  heard.none = not reply.err -- no kind has listeners
  for i = 1, #reply / 2 do
    heard[kinds[i]] = reply[2 * i] > 0
    if heard[kinds[i]] then heard.none = false end
  end
  return heard
end
-- Without *ids*: all there were. *reasons*: one for each of them.
local function publish(events, kind, ids, worker, reasons)
  if ids and #ids == 0 then return end
  local time = redis.call('TIME')
  local message = {at = time[1] * 1000 + math.floor(time[2] / 1000), ids = ids, reasons = reasons}
  message.worker = worker ~= '' and worker or nil
  redis.pcall('PUBLISH', events .. ':' .. kind, cjson.encode(message))
end
