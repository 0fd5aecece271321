-- Whether a consumer is one of those that are no workers: what they own is leased to nobody.
local function nobody(owner)
  return owner == 'parked' or owner == 'bell' or owner == 'limited' or string.sub(owner, 1, 7) == 'parked:'
end
