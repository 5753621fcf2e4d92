-- cancel: end a waiting job at its client's wish.
--
-- Guarantee: a cancelled job never leaves and its place is free at once; cancelling it again changes nothing and is answered alike.
--
-- KEYS
--   1 clock   2 due   3 expires   4 job
-- ARGV
--   1 instant in µs, or '' for the server's   2 tenant as in keys   3 default policy
--   4, 5, 6 retention in s: of finished jobs, of dead letters, of idempotency keys
-- Reply
--   now, then 0 no such job of this tenant, 1 cancelled, 3 not waiting
-- Derived keys: flow queue later policy job idem done dead due expires unlock
-- Channels: sluice:wake sluice:done

--! include record clock flow finish

local ABSENT, CANCELLED, CONFLICT = 0, 1, 3
clock_load(ARGV[1])
retention_of(ARGV[4], ARGV[5], ARGV[6])
local id = string.sub(KEYS[4], #PREFIX + 5)
local j = job_read(redis.call('GETRANGE', KEYS[4], 0, UP_TO_PAYLOAD - 1))
if not j or tenant_of(j.flow) ~= ARGV[2] then
  return { now, ABSENT }
end
if j.state == 'c' then
  return { now, CANCELLED }
end
if j.state ~= 'q' and j.state ~= 's' and j.state ~= 'r' then
  return { now, CONFLICT }
end
local f = flow_load(j.flow, ARGV[3])
redis.call('EXISTS', KEYS[2], KEYS[3], PREFIX .. 'queue:' .. f.name, PREFIX .. 'later:' .. f.name)
finish_reads(j)

unlock()
if j.state == 'q' then
  redis.call('ZREM', PREFIX .. 'queue:' .. f.name, id)
  f.queued = f.queued - 1
  f.cost = f.cost - j.cost
else
  redis.call('ZREM', PREFIX .. 'later:' .. f.name, id)
end
redis.call('ZREM', KEYS[3], id)
f.depth = f.depth - 1
clock.depth = clock.depth - 1
finish(id, j, 'c', '')
flow_save(f)
due_save(f, later_head(f))
clock_save()
return { now, CANCELLED }
