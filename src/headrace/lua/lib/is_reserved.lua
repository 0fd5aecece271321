-- Whether a consumer holds parked entries, of any level.
local function is_parked(owner) return owner == 'parked' or string.sub(owner, 1, 7) == 'parked:' end
-- Whether a consumer is no worker: its entries are not leased.
local function is_reserved(owner) return is_parked(owner) or owner == 'bell' or owner == 'limited' or owner == 'behind' end
