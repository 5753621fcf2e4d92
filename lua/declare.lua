-- declare: put the baseline of a configuration file into force in a shard.
--
-- Guarantee: the highest revision wins, in whatever order the calls arrive; backlogs obey it by the next looks. The
-- same call sent twice changes nothing the second time and is answered alike.
--
-- KEYS
--   1 clock
-- ARGV
--   1 instant in µs, or '' for the server's   2 revision   3 baseline
-- Reply
--   now, 1 in force or 0 a later revision is
-- Derived keys: unlock tenants
-- Channels: sluice:wake

--! include record clock

clock_load(ARGV[1])
local before = tonumber(redis.call('HGET', KEYS[1], 'revision') or '0')
if tonumber(ARGV[2]) < before then
  return { now, 0 }
end
if tonumber(ARGV[2]) == before and clock.baseline == ARGV[3] then
  return { now, 1 }
end
unlock()
redis.call('HSET', KEYS[1], 'revision', ARGV[2])
if clock.baseline ~= ARGV[3] then
  redis.call('HSET', KEYS[1], 'baseline', ARGV[3], 'looked', '00')
end
clock_save()
redis.call('PUBLISH', 'sluice:wake', KEYS[1])
return { now, 1 }
