-- trail: read a part of the audit.
--
-- Guarantee: entries have numbers, which grow by one along the chain and do not change while others
-- are appended and removed. It writes nothing.
--
-- KEYS
--   1 clock of the audit   2 entries, the oldest first
-- ARGV
--   1 number of the entry behind the last one of the part, or '' for the newest ones
--   2 most entries
-- Reply
--   number of the first entry of the chain, number of the first one of the part, number behind the
--   last one of the chain, then the entries of the part, the oldest first, each with its class
-- Derived keys: (none)
-- Channels: (none)

local first = tonumber(redis.call('HGET', KEYS[1], 'first') or '1')
local stop = first + redis.call('LLEN', KEYS[2])
local before = math.min(tonumber(ARGV[1]) or stop, stop)
local from = math.max(first, before - tonumber(ARGV[2]))
local found = {}
if from < before then
  found = redis.call('LRANGE', KEYS[2], from - first, before - first - 1)
end
return { first, from, stop, unpack(found) }
