-- used: store when API keys were last used.
--
-- Guarantee: a revoked key stays revoked, and no use replaces a later one. A second call changes
-- nothing. It writes at maxmemory, too.
--
-- KEYS
--   1 clock
--   then per use: key
-- ARGV
--   per use: instant in ms
-- Reply
--   per use: 1 stored, 0 the key is gone or has a later use
-- Derived keys: unlock
-- Channels: (none)

--! needs clock

local reply, later = {}, {}
for i = 1, #ARGV do
  local stored = redis.call('HMGET', KEYS[i + 1], 'hash', 'used')
  later[i] = stored[1] and tonumber(stored[2] or 0) < tonumber(ARGV[i])
end
unlock()
for i = 1, #ARGV do
  if later[i] then
    redis.call('HSET', KEYS[i + 1], 'used', ARGV[i])
  end
  reply[i] = later[i] and 1 or 0
end
return reply
