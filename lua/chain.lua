-- chain: append entries to the audit, and remove its oldest ones in the same step.
--
-- Guarantee: an entry is appended only behind the one that it was hashed with, so all
-- processes make one chain. The same call sent twice appends once, unless MAX_CALLS others came in
-- between. A call without entries changes nothing.
--
-- KEYS
--   1 clock of the audit, which holds the end of the chain   2 entries, the oldest first
-- ARGV
--   1 instant in µs, or '' for the server's   2 name of the call, 16 characters
--   3 hash of the entry before the first one, '' for none   4 hash of the last one   5 its time
--   6 oldest entries to remove
--   then per entry: its class (c change, r read, f refusal) and its JSON, joined
-- Reply
--   now, 1 the entries are in the chain, else 0, then of the chain: hash and time of its last
--   entry, number of its first entry, entries, bytes of changes, of reads, of refusals
-- Derived keys: unlock
-- Channels: (none)

--! needs clock

local MAX_CALLS, NAME = 64, 17 -- characters of a name and the space before it
local FIXED = 6 -- arguments before the entries

local instant = tonumber(ARGV[1])
if not instant then
  local time = redis.call('TIME')
  instant = tonumber(time[1]) * 1000000 + tonumber(time[2])
end
local v = redis.call('HMGET', KEYS[1], 'hash', 'at', 'calls', 'first', 'c', 'r', 'f')
local hash, at, calls, first = v[1] or '', v[2] or '', v[3] or '', tonumber(v[4] or '1')
local bytes = { c = tonumber(v[5] or '0'), r = tonumber(v[6] or '0'), f = tonumber(v[7] or '0') }
local count = redis.call('LLEN', KEYS[2])
local applied = string.find(calls, ' ' .. ARGV[2], 1, true)

-- counted adds the bytes of an entry to those of its class, sign 1, or subtracts them, sign -1.
local function counted(entry, sign)
  local class = string.sub(entry, 1, 1)
  if bytes[class] then -- else somebody else has written it
    bytes[class] = math.max(0, bytes[class] + sign * #entry)
  end
end

if #ARGV > FIXED and not applied and ARGV[3] == hash then
  local gone = math.min(tonumber(ARGV[6]), count)
  if gone > 0 then
    local old = redis.call('LRANGE', KEYS[2], 0, gone - 1)
    for i = 1, #old do
      counted(old[i], -1)
    end
  end
  for i = FIXED + 1, #ARGV do
    counted(ARGV[i], 1)
  end
  calls = string.sub(calls .. ' ' .. ARGV[2], -NAME * MAX_CALLS)
  hash, at, first, count = ARGV[4], ARGV[5], first + gone, count - gone + #ARGV - FIXED
  unlock() -- a full store must not blind the audit, which has a bound of its own
  redis.call('HSET', KEYS[1], 'hash', hash, 'at', at, 'calls', calls, 'first', first,
    'c', bytes.c, 'r', bytes.r, 'f', bytes.f)
  if gone > 0 then
    redis.call('LTRIM', KEYS[2], gone, -1)
  end
  in_parts('RPUSH', KEYS[2], ARGV, FIXED + 1)
  applied = true
end
return { instant, applied and 1 or 0, hash, at, first, count, bytes.c, bytes.r, bytes.f }
