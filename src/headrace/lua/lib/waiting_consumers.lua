-- The consumers of the jobs of a level that wait, in the order of leases, before its new jobs; each with a name. The
-- first level has the jobs in lines, of all levels.
local function waiting_consumers(level)
  if level > 0 then return {{'parked', front_of(level)}} end
  return {
    {'parked', 'parked'}, {'front', 'parked:front'}, {'suspects', SUSPECTS}, {'idle', 'idle'}, {'behind', 'behind'},
    {'line', 'parked:new'},
  }
end
