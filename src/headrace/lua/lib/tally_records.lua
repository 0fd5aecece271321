-- The tallies of a queue: what its workers have counted in each minute of two hours, and in each ten minutes of a day.
-- The key is a hash. Its fields `m<minute modulo 120>` and `t<ten minutes modulo 144>` are records: the number of the
-- minute, or of the ten minutes, since 1970 (4 bytes), and rows. A record whose number does not fit its place is old, and
-- counts as none. A row: the bytes of its name (1 byte), the number of its sums (1 byte), the bytes of each of them, 2 or
-- 4 (1 byte), the name, and the sums, each with the highest byte first. `k` and a kind: done, retried, died, then how
-- many waits, and how many runs, took at most 2 ms, 5 ms, and so on, each 2.5 times as long, in 16 ranges each; samples
-- stand for all. `h` and a machine: done, retried, died, ms that handlers ran, ms that they could have run. At most 8
-- names of each are in a record: the rest is in the rows `ok` and `oh`. The key expires a day after the last call.
local TALLIES = {m = {every = 60000, size = 120}, t = {every = 600000, size = 144}}
local function tally_number(ring, now) return math.floor(now / TALLIES[ring].every) end
local function tally_field(ring, number) return ring .. number % TALLIES[ring].size end
