-- feature builds: runs that were held back for a worker of another build.
-- KEYS   pinned (hash)
-- `pinned`: entry of such a run → the ms until which it sleeps, and the build that began it, with a blank between them.
local builds = {LOOKED_AT = 100, TOLD = 20}
function builds.pin(pinned, entry, due, build) redis.call('HSET', pinned, entry, string.format('%.0f %s', due, build)) end
-- The entry and the build of pinned runs, in turn: some, chosen at random. Those that sleep no more, or for something
-- else, are forgotten.
function builds.pinned(pinned, asleep)
  local rows, some, gone = redis.call('HRANDFIELD', pinned, builds.LOOKED_AT, 'WITHVALUES'), {}, {}
  for i = 1, #rows, 2 do
    local due, build = string.match(rows[i + 1], '^(%d+) (.*)$')
    if due and redis.call('ZSCORE', asleep, rows[i]) == due then
      some[#some + 1], some[#some + 2] = rows[i], build
    else
      gone[#gone + 1] = rows[i]
    end
  end
  if #gone > 0 then redis.call('HDEL', pinned, unpack(gone)) end
  return some
end
-- The builds that runs were held back for.
function builds.wanted(pinned, asleep)
  local found, seen = {}, {}
  if redis.call('EXISTS', pinned) == 0 then return found end
  local some = builds.pinned(pinned, asleep)
  for i = 2, #some, 2 do
    if not seen[some[i]] and #found < builds.TOLD then found[#found + 1] = some[i] end
    seen[some[i]] = true
  end
  return found
end
