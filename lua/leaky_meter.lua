-- leaky_meter: decide on a request by limiter.LeakyMeter, the generic cell rate algorithm.
--
-- Guarantee: at most burst + limit is allowed in any period, and no fraction is lost: what does not
-- divide is kept as a remainder. What is refused writes nothing. A request that is sent again is
-- not charged twice, unless TAGS_KEPT others of the key were allowed in between.
--
-- KEYS
--   1 state
-- ARGV
--   1 instant in µs, or '' for the server's
--   2 tag of the request, 8 characters, or '' for none
--   3 cost, 0 asks
--   4 limit
--   5 period in µs
--   6 burst
-- Reply
--   now, 1 allowed or 0 refused, remaining, retry after in µs (0: allowed, or never), reset in µs
-- Derived keys: (none)
-- Channels: (none)

--! include limit

-- The bucket is empty at tat + rem / limit. Water is counted in units of 1 / limit µs.
local tat, rem = limit_load('tat', 'rem')
local size = tonumber(ARGV[6])
if now > tat then
  tat, rem = now, 0
end
local room, water = size * period, (tat - now) * limit + rem
local free = floor((room - water) / period)
local allowed, retry = cost <= free, 0
if allowed and cost > 0 then
  water, free = water + cost * period, free - cost
  local whole = floor(water / limit)
  limit_keep(quotient(water, limit), 'tags', limit_tags(), 'tat', now + whole, 'rem', water - whole * limit)
elseif not allowed and cost <= size then
  retry = quotient(cost * period - (room - water), limit)
end
return limit_answer(allowed, size, free, retry, quotient(water, limit))
