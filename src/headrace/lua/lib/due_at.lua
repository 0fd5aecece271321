-- The time of a delay, in ms of the server's clock: '' now, '+ms' from now, '@ms' at a moment. 0 when it has passed.
local function due_at(delay, now)
  if delay == '' then return 0 end
  local sign, ms = string.match(delay, '^([+@])(%d+)$')
  local due = whole(ms) + (sign == '+' and now or 0)
  return due > now and due or 0
end
