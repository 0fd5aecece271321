-- Whether a consumer has what is parked, at any level.
local function is_parked(owner) return owner == 'parked' or string.sub(owner, 1, 7) == 'parked:' end
-- Whether it is one of those that are no workers: what they own is leased to nobody.
local function is_reserved(owner) return is_parked(owner) or owner == 'bell' or owner == 'limited' end
