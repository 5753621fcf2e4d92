-- leaky_meter: decide on a request by limiter.LeakyMeter, the generic cell rate algorithm.
--
-- Guarantee: at most burst + limit is allowed in any period, and no fraction is lost: what does not
-- divide is kept as a remainder. What is refused writes nothing. A request that is sent again is
-- not charged twice, unless MAX_TAGS others of the key were allowed in between.
--
-- KEYS
--   1 state
-- ARGV
--   1 instant in µs, or '' for the server's
--   2 tag of the request, 8 characters, or '' for none
--   3 cost; 0 reads the state without a charge
--   4 limit
--   5 period in µs
--   6 burst
-- Reply
--   now, 1 allowed or 0 refused, remaining, retry after in µs (0: allowed, or never), reset in µs
-- Derived keys: (none)
-- Channels: (none)

--! needs limit

return limit_bucket(tonumber(ARGV[6]))
