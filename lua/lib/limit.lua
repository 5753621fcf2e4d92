-- limit: shared by all limiters. The arithmetic is that of package limiter, step for step.
--
-- KEYS[1] is always the state of a key, a hash. Its field seen is the instant of the last write;
-- earlier instants count as that one. Its field tags holds the tags of the last allowed requests.
-- Scripts add fields of their own.
-- A refused request and one of cost 0 write nothing, except the start of a block: retries cost
-- neither memory nor a line of the append-only file.
-- The whole state expires SENT_AGAIN after the reset of the key.
-- ARGV always begins with the instant, the tag of the request, its cost, the limit and the period.

local MAX_TAGS, TAG = 32, 9 -- characters of a tag and the space before it
local SENT_AGAIN = 10000 -- ms after which no call is sent again

local tag, cost, limit, period = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local server = tonumber(ARGV[1])
if not server then
  local time = redis.call('TIME')
  server = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local now, seen, tags, again

-- limit_load reads the state and returns the named fields; what is missing is 0. A request that was
-- allowed before becomes one of cost 0.
local function limit_load(...)
  local v = redis.call('HMGET', KEYS[1], 'seen', 'tags', ...)
  tags, v[2] = v[2] or '', '0'
  for i = 1, #v do
    v[i] = v[i] and tonumber(v[i]) or 0
  end
  seen = v[1]
  now = math.max(server, seen)
  again = tag ~= '' and string.find(tags, ' ' .. tag, 1, true)
  if again then
    cost = 0
  end
  return unpack(v, 3)
end

-- living is the time to live, in ms, of a key that is needed for the given time in µs. Keys expire
-- by the server's clock, which may be behind.
local function living(reset)
  return math.floor((now - server + reset) / 1000) + 1 + SENT_AGAIN
end

-- limit_keep writes the state. It is the first write of a script, so at maxmemory Redis refuses it
-- with nothing changed.
local function limit_keep(reset, ...)
  redis.call('HSET', KEYS[1], 'seen', now, ...)
  redis.call('PEXPIRE', KEYS[1], living(reset))
end

-- limit_charge is limit_keep for a request that is allowed: its tag is kept.
local function limit_charge(reset, ...)
  if tag ~= '' then
    tags = string.sub(tags .. ' ' .. tag, -TAG * MAX_TAGS)
  end
  limit_keep(reset, 'tags', tags, ...)
end

-- quotient is a / b rounded up.
local function quotient(a, b)
  return math.floor(a / b) + (a % b > 0 and 1 or 0)
end

-- limit_answer is the reply; most is the greatest cost that is ever allowed.
local function limit_answer(allowed, most, remaining, retry, reset)
  if allowed or again or cost > most then
    retry = 0
  end
  return { now, (allowed or again) and 1 or 0, remaining, retry, reset }
end

-- limit_bucket decides by a bucket of the given size that loses limit in each period. Its content
-- is the spent tokens of a token bucket or the water of a leaky one, in units of 1 / limit µs. It
-- is empty at tat + rem / limit.
local function limit_bucket(size)
  local tat, rem = limit_load('tat', 'rem')
  if now > tat then
    tat, rem = now, 0
  end
  local full, content = size * period, (tat - now) * limit + rem
  local free = math.floor((full - content) / period)
  local allowed = cost <= free
  local retry = allowed and 0 or quotient(cost * period - (full - content), limit)
  if allowed and cost > 0 then
    content, free = content + cost * period, free - cost
    local whole = math.floor(content / limit)
    limit_charge(quotient(content, limit), 'tat', now + whole, 'rem', content - whole * limit)
  end
  return limit_answer(allowed, size, free, retry, quotient(content, limit))
end
