-- feature events: tells listeners what happens to jobs.
-- KEYS   events (channel)
-- Events, published to listeners: a Pub/Sub channel per kind, one message per script call, at most once, and never a
-- reason to fail. `heard` of the stats says that there may be listeners (see listen.lua): reading it costs as much as
-- the check of the key's type, so that a queue without listeners pays nothing. Answers which kinds have listeners now,
-- and `history`, `shards` and `cancelled` of the stats: see history, seal and cancellations. On a cluster listeners subscribe by slot (`heard` is
-- 2): a message then stays on its node, while PUBLISH would go to all nodes.
local channels_of = {unheard = {}, sharded = {}} -- channels without plain listeners, and with some by slot
local function listeners(stats, events, ...)
  local told = redis.call('HMGET', stats, 'heard', 'history', 'shards', 'cancelled')
  local heard = {history = told[2], sealed = told[3], cancels = told[4]}
  if not told[1] then return heard end
  local kinds, channels = {...}, {}
  for i = 1, #kinds do channels[i] = events .. ':' .. kinds[i] end
  local reply = redis.pcall('PUBSUB', 'NUMSUB', unpack(channels))
  heard.none = not reply.err -- no kind has listeners
  for i = 1, #reply / 2 do
    heard[kinds[i]] = reply[2 * i] > 0
    if heard[kinds[i]] then heard.none = false end
  end
  if told[1] ~= '2' then return heard end
  reply = redis.pcall('PUBSUB', 'SHARDNUMSUB', unpack(channels))
  heard.none = heard.none and not reply.err
  for i = 1, #reply / 2 do
    if reply[2 * i] > 0 then
      channels_of.sharded[channels[i]], channels_of.unheard[channels[i]] = true, not heard[kinds[i]]
      heard[kinds[i]], heard.none = true, false
    end
  end
  return heard
end
-- Without *ids*: all events so far. *reasons*: one for each id.
local function publish(events, kind, ids, worker, reasons)
  if ids and #ids == 0 then return end
  local time, channel = redis.call('TIME'), events .. ':' .. kind
  local message = {at = time[1] * 1000 + math.floor(time[2] / 1000), ids = ids, reasons = reasons}
  message.worker = worker ~= '' and worker or nil
  if channels_of.sharded[channel] then redis.pcall('SPUBLISH', channel, cjson.encode(message)) end
  if not channels_of.unheard[channel] then redis.pcall('PUBLISH', channel, cjson.encode(message)) end
end
