-- token_bucket: decide on a request by limiter.TokenBucket.
--
-- Guarantee: at most burst + limit is allowed in any period, and no fraction of a token is lost,
-- however often one asks. What is refused writes nothing. A request that is sent again is not
-- charged twice, unless TAGS_KEPT others of the key were allowed in between.
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

-- In parts of a token of which a microsecond brings back limit.
local spent = limit_load('spent')
local size = tonumber(ARGV[6])
local full, elapsed = size * period, now - seen
if elapsed > floor(spent / limit) then
  spent = 0
else
  spent = spent - elapsed * limit
end
local free = floor((full - spent) / period)
local allowed, retry = cost <= free, 0
if allowed and cost > 0 then
  spent, free = spent + cost * period, free - cost
  limit_keep(quotient(spent, limit), 'tags', limit_tags(), 'spent', spent)
elseif not allowed and cost <= size then
  retry = quotient(cost * period - (full - spent), limit)
end
return limit_answer(allowed, size, free, retry, quotient(spent, limit))
