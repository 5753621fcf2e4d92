-- sliding_counter: decide on a request by limiter.SlidingCounter.
--
-- Guarantee: at most 2 × limit − 1 is allowed in any period, the limit if requests come evenly.
-- Both counts and their window expire together. What is refused writes nothing. A request that is
-- sent again is not charged twice, unless MAX_TAGS others of the key were allowed in between.
--
-- KEYS, ARGV, Reply: as of fixed_window
-- Derived keys: (none)
-- Channels: (none)

--! needs limit

local start, count, previous = limit_load('start', 'count', 'previous')
local window = math.floor(now / period) * period
if start + period == window then
  start, previous, count = window, count, 0
elseif start ~= window then
  start, previous, count = window, 0, 0
end

-- free_at is when a cost that was refused fits: in this window once enough of the one before has
-- slid out, else in the next one.
local function free_at()
  local spare = limit - count - cost
  if spare >= 0 then
    return start + period - math.floor(spare * period / previous)
  end
  return start + 2 * period - math.floor((limit - cost) * period / count)
end

local free = math.max(0, math.floor(((limit - count) * period - previous * (period - (now - start))) / period))
local allowed, retry = cost <= free, 0
if allowed and cost > 0 then
  count, free = count + cost, free - cost
  limit_charge(start + 2 * period - now, 'start', start, 'count', count, 'previous', previous)
elseif not allowed and cost <= limit then
  retry = math.max(0, free_at() - now)
end
local reset = 0
if count > 0 then
  reset = start + 2 * period - now
elseif previous > 0 then
  reset = start + period - now
end
return limit_answer(allowed, limit, free, retry, reset)
