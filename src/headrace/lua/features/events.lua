-- feature events: tells listeners what happens to jobs.
-- KEYS   events (channel)
-- Events, published to listeners: a Pub/Sub channel per kind, one message per script call, at most once, and never a
-- reason to fail. `listening` of the stats says that there may be listeners (see listen.lua): reading it costs as much as
-- the check of the key's type, so that a queue without listeners pays nothing. Answers which kinds have listeners now,
-- and `history`, `shards` and `cancelled` of the stats: see history, seal and cancellations. On a cluster listeners subscribe by slot (`listening` is
-- 2): a message then stays on its node, while PUBLISH would go to all nodes.
local channels_of = {unheard = {}, sharded = {}} -- channels without plain listeners, and with some by slot
local function listeners(stats, events, ...)
  local kept = redis.call('HMGET', stats, 'listening', 'history', 'shards', 'cancelled')
  local listening = {history = kept[2], sealed = kept[3], cancels = kept[4]}
  if not kept[1] then return listening end
  local kinds, channels = {...}, {}
  for i = 1, #kinds do channels[i] = events .. ':' .. kinds[i] end
  local reply = redis.pcall('PUBSUB', 'NUMSUB', unpack(channels))
  listening.none = not reply.err -- no kind has listeners
  for i = 1, #reply / 2 do
    listening[kinds[i]] = reply[2 * i] > 0
    if listening[kinds[i]] then listening.none = false end
  end
  if kept[1] ~= '2' then return listening end
  reply = redis.pcall('PUBSUB', 'SHARDNUMSUB', unpack(channels))
  listening.none = listening.none and not reply.err
  for i = 1, #reply / 2 do
    if reply[2 * i] > 0 then
      channels_of.sharded[channels[i]], channels_of.unheard[channels[i]] = true, not listening[kinds[i]]
      listening[kinds[i]], listening.none = true, false
    end
  end
  return listening
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
