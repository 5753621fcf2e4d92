-- fixed_window: decide on a request by limiter.FixedWindow.
--
-- Guarantee: at most the limit is allowed in each period since the Unix epoch. The window and its
-- count expire together. What is refused writes nothing. A request that is sent again is not
-- charged twice, unless MAX_TAGS others of the key were allowed in between.
--
-- KEYS
--   1 state
-- ARGV
--   1 instant in µs, or '' for the server's
--   2 tag of the request, 8 characters, or '' for none
--   3 cost; 0 reads the state without a charge
--   4 limit
--   5 period in µs
-- Reply
--   now, 1 allowed or 0 refused, remaining, retry after in µs (0: allowed, or never), reset in µs
-- Derived keys: (none)
-- Channels: (none)

--! needs limit

local start, count = limit_load('start', 'count')
local window = math.floor(now / period) * period
if start ~= window then
  start, count = window, 0
end
local left = start + period - now
local allowed = cost <= limit - count
if allowed and cost > 0 then
  count = count + cost
  limit_charge(left, 'start', start, 'count', count)
end
return limit_answer(allowed, limit, limit - count, left, count > 0 and left or 0)
