-- heartbeat: register a live worker, or remove one that leaves, and return the live ones.
--
-- Guarantee: a worker is live until it leaves or its last heartbeat is older than the time to live,
-- by a clock that never goes backwards.
--
-- KEYS
--   1 clock of the workers   2 workers
-- ARGV
--   1 instant in µs, or '' for the server's   2 worker   3 time to live in µs   4 '1' to leave
-- Reply
--   now, then the live workers by their last heartbeat
-- Derived keys: unlock tenants
-- Channels: wake

--! needs clock

clock_load(ARGV[1])
redis.call('EXISTS', KEYS[2])
unlock()
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now - tonumber(ARGV[3]))
if ARGV[4] == '1' then
  redis.call('ZREM', KEYS[2], ARGV[2])
  publish('wake', '')
else
  redis.call('ZADD', KEYS[2], now, ARGV[2])
end
clock_save()
return { now, unpack(redis.call('ZRANGE', KEYS[2], 0, -1)) }
