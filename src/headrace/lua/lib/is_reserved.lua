-- Whether a consumer holds parked entries, of any level.
local function is_parked(owner) return owner == 'parked' or string.sub(owner, 1, 7) == 'parked:' end
-- Whether a consumer holds jobs in lines that were never leased: these are waiting, and its deliveries are none.
local function is_lined(owner) return owner == 'parked:new' end
-- Whether a consumer holds jobs in lines.
local function is_in_line(owner) return is_lined(owner) or owner == 'parked:front' end
-- Whether the deliveries of this consumer's jobs are none: waking a reader, or standing in a line, is no delivery.
local function is_undelivered(owner) return owner == 'idle' or is_lined(owner) end
-- Whether a consumer is no worker: its entries are not leased.
local function is_reserved(owner) return is_parked(owner) or owner == 'idle' or owner == 'limited' or owner == 'behind' end
