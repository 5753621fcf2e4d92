-- declare: put the policies of a configuration file into force in a shard.
--
-- Guarantee: the highest revision wins, in whatever order the calls arrive; backlogs obey it by the
-- next polls. Routes that were closed for it are open again. The same call sent twice changes
-- nothing the second time and is answered alike.
--
-- KEYS
--   1 clock   2 lines
-- ARGV
--   1 instant in µs, or '' for the server's   2 revision
--   then per class of flows of tenants without settings of their own: TIER/ROUTE, line as in
--   lib/policy.lua
-- Reply
--   now, 1 in force or 0 a later revision is
-- Derived keys: unlock tenants
-- Channels: wake

--! needs clock policy

clock_load(ARGV[1])
local before, revision = tonumber(clock.revision) or 0, ARGV[2]
if tonumber(revision) < before then
  return { now, 0 }
end
if redis.call('HGET', KEYS[2], 'revision') ~= revision then
  unlock()
  redis.call('DEL', KEYS[2])
  write_lines(KEYS[2], revision, 3)
end
if clock.revision ~= revision then
  unlock()
  redis.call('HSET', KEYS[1], 'revision', revision, 'looked', '00')
  redis.call('HDEL', KEYS[1], 'closed')
  clock_save()
  publish('wake', '')
end
return { now, 1 }
