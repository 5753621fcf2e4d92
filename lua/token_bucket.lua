-- token_bucket: decide on a request by limiter.TokenBucket.
--
-- Guarantee: at most burst + limit is allowed in any period, and no fraction of a token is lost, at
-- any rate of requests. What is refused writes nothing. A request that is sent again is not charged
-- twice, unless MAX_TAGS others of the key were allowed in between.
--
-- KEYS, ARGV, Reply: as of leaky_meter
-- Derived keys: (none)
-- Channels: (none)

--! needs limit

return limit_bucket(tonumber(ARGV[6]))
