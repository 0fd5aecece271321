-- Tell whether a schedule with this next tick is paused: see pause_schedule. A schedule that moves to another shard
-- meanwhile is 10^14 ms later still.
local function is_paused_tick(due) return due >= 2e14 and due < 4e14 end
