-- The look at new jobs of an ordered queue: a key is first asked for its turn. *look*: see reading.
local function read_in_order(look)
  look.turns = turning.read
  look.behind = function(q, entry, owner, count)
    if turning.takes(q, entry) then return false end
    if owner then hand_to(q.jobs, 'behind', {entry}, count) else q.others[#q.others + 1] = entry end
    return true
  end
end
