-- The tallies of a queue: what its workers have counted in each minute of two hours, in each ten minutes of a day, and,
-- if it is fair, by value in each minute of an hour. The key is a hash. Its fields `m<minute modulo 120>`,
-- `t<ten minutes modulo 144>` and `v<minute modulo 60>` are records: the number of the minute, or of the ten minutes,
-- since 1970 (4 bytes), and rows. A record whose number does not fit its place is old, and counts as none. A row: the
-- bytes of its name (1 byte), the number of its sums (1 byte), the bytes of each of them, 2 or 4 (1 byte), the name, and
-- the sums, each with the highest byte first. `k` and a kind: done, retried, died, then how many waits, and how many
-- runs, took at most 2 ms, 5 ms, and so on, each 2.5 times as long, in 16 ranges each; samples stand for all. `h` and a
-- machine: done, retried, died, ms that handlers ran, ms that they could have run. `v` and a value, as a JSON array, or
-- the SHA-256 of one that is longer than 64 bytes: done, failed. At most 8 kinds, 8 machines and 50 values are in a
-- record, the ones with the most jobs: the rest is in the rows `ok`, `oh` and `ov`. The key expires a day after the
-- last call.
local TALLIES = {m = {every = 60000, size = 120}, t = {every = 600000, size = 144}, v = {every = 60000, size = 60}}
local function tally_number(ring, now) return math.floor(now / TALLIES[ring].every) end
local function tally_field(ring, number) return ring .. number % TALLIES[ring].size end
