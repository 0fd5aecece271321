-- The last entry that the stream's group has delivered; nil without a group.
local function delivered(jobs)
  local groups = redis.pcall('XINFO', 'GROUPS', jobs)
  for i = 1, #groups do
    local named = {}
    for j = 1, #groups[i], 2 do named[groups[i][j]] = groups[i][j + 1] end
    if named.name == 'workers' then return named['last-delivered-id'] end
  end
end
