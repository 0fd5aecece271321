-- The trends of a queue that is declared to have them: its counts at the first sweep of each minute of two days, and of
-- each hour of 90 days. `trends` of the stats is the time of the last record, in ms. The key is two ring buffers, one
-- behind the other, of records of nine numbers of four bytes, the highest byte first: seconds of the clock; enqueued,
-- completed and removed (cancelled, deleted, trimmed) since the beginning, modulo 2^32; waiting (parked ones, too),
-- leased, delayed (and blocked), dead; ms that the oldest of the next jobs has waited. A record's place is its minute,
-- or hour, modulo the size of its ring. A record whose time does not fit its place is old, and counts as none. From the
-- first record on the key has the same size: 181,440 bytes.
local RECORD = 36
local MINUTES = {every = 60000, start = 0, size = 2880}
local HOURS = {every = 3600000, start = MINUTES.size, size = 2160}
-- The ring of minutes, or of hours; and the place of the record of *now* in it.
local function trend_ring(hourly, now)
  local ring = hourly and HOURS or MINUTES
  return ring, math.floor(now / ring.every) % ring.size
end
local function bytes_of(ring, place) return RECORD * (ring.start + place) end
