-- line_up: look at new jobs of a queue with terms without leasing any: each comes into its line. For backlogs.
-- KEYS   jobs (stream), wake (stream), stats (hash)
-- ARGV   limit count, buckets...
-- REPLY  1 there are more jobs to look at: call again · 0 that was all
-- COST   20 us + 5 us per job, at most 1 MiB of them
-- Jobs of later levels are looked at when they may be next. buckets: as for lease_fair.
require_hashes(terms, shares, held)
require_sorted_sets(lines, ready, stopped, resting, slots)
local t = agreed.read(terms)
if not t or t.next or redis.call('HEXISTS', stats, 'healed') == 1 then return 0 end
if redis.pcall('XPENDING', jobs, 'workers', '-', '+', 1, 'idle').err then return 0 end -- the next lease makes the group
redis.call('XACK', wake, 'workers', '0-0') -- a full server permits this first write
local q = {
  jobs = jobs, wake = wake, stats = stats, terms = terms, shares = shares, lines = lines, ready = ready, stopped = stopped,
  resting = resting, held = held, slots = slots, turns = turns, behind = behind, rates = rates, deaths = deaths,
  leases = leases,
  levels = {n = tonumber(redis.call('HGET', stats, 'levels') or 0)}, now = clock(), limit = 1, left = limit, chunk = 16, spent = 0,
  largest = math.max(4096, tonumber(redis.call('HGET', stats, 'largest') or 0)), others = {}, worker = 'parked:new', reader = 'parked:new',
}
q.limits = rate_limits(q, buckets)
agreed.rates(q, t)
if q.order then read_in_order(reading) end
q.moment = pace.moment()
picking.context(q, t, q.moment)
q.mean_before, q.has_lines = t.mean, redis.call('EXISTS', lines) == 1
q.has_stopped, q.has_resting = redis.call('EXISTS', stopped) == 1, redis.call('EXISTS', resting) == 1
reading.at_new(q, 'parked:new')
picking.admit(q)
if q.order then
  turning.write(q)
  hand_to(q.jobs, 'behind', q.others, 0)
end
filing.all(q, 1)
keep_max_job_size(stats, q.largest)
if #q.all_lines > 0 then wake_one(wake) end
return q.further and 1 or 0
