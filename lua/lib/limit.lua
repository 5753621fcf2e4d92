-- limit: what all limiters share. The arithmetic is that of package limiter, step for step.
--
-- KEYS[1] is always the state of a key, a hash. Its field seen is the instant of the last write;
-- earlier instants count as that one. Its field tags holds the tags of the last allowed requests.
-- Scripts add fields of their own.
-- A refused request and one of cost 0 write nothing, except the start of a block: retrying in vain
-- costs neither memory nor a line of the append-only file.
-- The whole state expires SENT_AGAIN after the key is as if never used.
-- ARGV always begins with the instant, the tag of the request, its cost, the limit and the period.

local floor, max, min = math.floor, math.max, math.min
local TAGS_KEPT, TAG = 32, 9 -- characters of a tag and the space before it
local SENT_AGAIN = 10000 -- ms after which no call is sent again

local tag, cost, limit, period = ARGV[2], tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local server = tonumber(ARGV[1])
if not server then
  local time = redis.call('TIME')
  server = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local now, seen, tags, again

-- limit_load reads the state and returns the named fields; what is missing is 0. A request that was
-- allowed before is taken for a question.
local function limit_load(...)
  local v = redis.call('HMGET', KEYS[1], 'seen', 'tags', ...)
  seen, tags = v[1] and tonumber(v[1]) or 0, v[2] or ''
  now = max(server, seen)
  again = tag ~= '' and string.find(tags, ' ' .. tag, 1, true)
  if again then
    cost = 0
  end
  for i = 3, #v do
    v[i] = v[i] and tonumber(v[i]) or 0
  end
  return unpack(v, 3)
end

-- living is the time to live, in ms, of what is of no use after the given time in µs. The expiry
-- goes by the server's clock, which may be behind.
local function living(reset)
  return floor((now - server + reset) / 1000) + 1 + SENT_AGAIN
end

-- limit_keep writes the state. It is the first write of a script, one that Redis refuses at
-- maxmemory, with nothing changed.
local function limit_keep(reset, ...)
  redis.call('HSET', KEYS[1], 'seen', now, ...)
  redis.call('PEXPIRE', KEYS[1], living(reset))
end

-- limit_tags are the tags with that of this request.
local function limit_tags()
  if tag == '' then
    return tags
  end
  return string.sub(tags .. ' ' .. tag, -TAG * TAGS_KEPT)
end

-- quotient is a / b rounded up.
local function quotient(a, b)
  local q = floor(a / b)
  if a - q * b > 0 then
    q = q + 1
  end
  return q
end

-- limit_answer is the reply; most is the greatest cost that is ever allowed.
local function limit_answer(allowed, most, remaining, retry, reset)
  if allowed or again or cost > most then
    retry = 0
  end
  return { now, (allowed or again) and 1 or 0, remaining, retry, reset }
end
