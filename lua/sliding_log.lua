-- sliding_log: decide on a request by limiter.SlidingLog.
--
-- Guarantee: at most the limit is allowed in any period. After an overflow nothing is allowed until
-- the block is over, which further requests do not prolong. The log holds what was allowed and
-- never more than the limit; what is refused writes nothing, except the start of a block. A
-- request that is sent again is not charged twice, unless MAX_TAGS others of the key were allowed
-- in between.
--
-- KEYS
--   1 state
--   2 log: instants and costs by turns, the oldest first
--   3 blocked keys of the rule by the end of their block;
--   not given where the block is 0
-- ARGV
--   1 instant in µs, or '' for the server's
--   2 tag of the request, 8 characters, or '' for none
--   3 cost; 0 reads the state without a charge
--   4 limit
--   5 period in µs
--   6 block in µs, 0 for none   7 key as it is listed when blocked
-- Reply
--   now, 1 allowed or 0 refused, remaining, retry after in µs (0: allowed, or never), reset in µs
-- Derived keys: (none)
-- Channels: (none)

--! needs limit

local PART, PART_MOST = 4, 512 -- requests read at a time

-- count is of the log as it is stored, last its last instant.
local count, blocked, last = limit_load('count', 'until', 'last')
local block = tonumber(ARGV[6])
if blocked <= now then
  blocked = 0
end

-- each passes the requests of the log, from an index on, to a function until it returns false.
local function each(from, f)
  local size = PART
  while true do
    local part = redis.call('LRANGE', KEYS[2], 2 * from, 2 * (from + size) - 1)
    for i = 1, #part, 2 do
      if not f(tonumber(part[i]), tonumber(part[i + 1])) then
        return
      end
    end
    if #part < 2 * size then
      return
    end
    from, size = from + size, math.min(2 * size, PART_MOST)
  end
end

local old, stale = 0, last + period <= now -- number of requests that no longer count; whether all do
if stale then
  count = 0
else
  each(0, function(at, took)
    if at + period > now then
      return false
    end
    old, count = old + 1, count - took
    return true
  end)
end

-- fits_at is the first instant at which enough of the log is too old for the cost to fit, now if it
-- fits already.
local function fits_at()
  local at, excess = now, count + cost - limit
  if excess > 0 then
    each(old, function(from, took)
      at, excess = from + period, excess - took
      return excess > 0
    end)
  end
  return at
end

local allowed, retry = cost <= limit - count and blocked == 0, 0
if allowed and cost > 0 then
  count, last = count + cost, now
  limit_charge(period, 'count', count, 'last', last, 'until', 0)
  if stale then
    redis.call('DEL', KEYS[2])
  elseif old > 0 then
    redis.call('LTRIM', KEYS[2], 2 * old, -1)
  end
  redis.call('RPUSH', KEYS[2], now, cost)
  redis.call('PEXPIRE', KEYS[2], living(period))
elseif not allowed and cost <= limit and not again then
  if blocked == 0 and block > 0 then
    blocked = now + block
    local reset = math.max(blocked, last + period) - now
    limit_keep(reset, 'until', blocked)
    redis.call('PEXPIRE', KEYS[2], living(reset))
    redis.call('ZREMRANGEBYSCORE', KEYS[3], '-inf', server)
    redis.call('ZADD', KEYS[3], blocked, ARGV[7])
    redis.call('PEXPIRE', KEYS[3], living(block))
  end
  retry = math.max(blocked, fits_at()) - now
end
return limit_answer(allowed, limit, blocked == 0 and limit - count or 0, retry,
  math.max(blocked, last + period, now) - now)
