-- Rate limits are token buckets: kept of each is when it will be full again, and nothing once it is.
-- limits: {name = header or '' for the whole queue, step = ms that a token takes, burst = tokens it holds}...
local function bucket(rates, member, now)
  return math.max(now, tonumber(redis.call('ZSCORE', rates, member) or 0))
end
-- How many jobs the limits of the whole queue admit now, at most *most*; if none, the ms until there is one.
local function room(rates, limits, now, most)
  local wait = 0
  for i, limit in ipairs(limits) do
    if limit.name == '' then
      local missing = bucket(rates, 'q' .. i, now) - now -- ms
      most = math.min(most, math.floor(limit.burst - missing / limit.step + 0.001))
      wait = math.max(wait, 1, math.ceil(missing - (limit.burst - 1) * limit.step))
    end
  end
  return math.max(0, most), wait
end
local function spend(rates, limits, now, jobs)
  for i, limit in ipairs(limits) do
    if limit.name == '' and jobs > 0 then
      redis.call('ZADD', rates, string.format('%.3f', bucket(rates, 'q' .. i, now) + jobs * limit.step), 'q' .. i)
    end
  end
end
-- Whether the limits of its keys admit a job: nil if they do, and the tokens are spent; else when it is due. Those that
-- wait for a bucket are due one step after the other, and a job that comes meanwhile waits behind them.
local turns = {}
local function admit(rates, limits, now, fields, waited)
  local charge, due, behind = {}, 0, {}
  for _, limit in ipairs(limits) do
    local value
    for i = 1, limit.name ~= '' and #fields or 0, 2 do
      if fields[i] == limit.name then value = fields[i + 1] end
    end
    if value then
      local member = #limit.name .. limit.name .. value
      local full = bucket(rates, 'k' .. member, now)
      local first = full - (limit.burst - 1) * limit.step -- when there is a token
      local last = tonumber(redis.call('ZSCORE', rates, 'w' .. member) or 0) -- when the last that waits is due
      charge[#charge + 1] = {full + limit.step, 'k' .. member}
      if first > now + 0.01 or not waited and last > now then
        local turn = waited and turns[member] or not waited and last or 0
        due = math.max(due, first, turn + limit.step)
        behind[#behind + 1] = {member, last}
      end
    end
  end
  for _, pair in ipairs(due == 0 and charge or {}) do redis.call('ZADD', rates, string.format('%.3f', pair[1]), pair[2]) end
  for _, pair in ipairs(behind) do
    turns[pair[1]] = due
    if due > pair[2] then redis.call('ZADD', rates, string.format('%.3f', due), 'w' .. pair[1]) end
  end
  return due > 0 and due or nil
end
