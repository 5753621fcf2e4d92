-- erase: remove a flow that has no jobs.
--
-- Guarantee: no sum of its shard, its class and its pool has a part of the flow afterwards: no
-- bytes, no weight, no reserve, and nothing that it owed. One that has jobs stays. A second call
-- changes nothing.
--
-- KEYS
--   1 clock   2 due   3 flow
-- ARGV
--   1 instant in µs, or '' for the server's
--   2 horizon in µs
-- Reply
--   1, or 0 if the flow has jobs; how many answers to forwarded requests it had
-- Derived keys: flow queue later returned dead done kept flows lines class unlock tenants wait
--   ready reserve
-- Channels: wake

--! needs record clock stored pool flow filing

clock_load(ARGV[1])

-- Read.
local name = sub(KEYS[3], #PREFIX + 6)
local tenant, kept = tenant_of(name), PREFIX .. 'kept:' .. name
local keys = {
  KEYS[3], PREFIX .. 'queue:' .. name, PREFIX .. 'later:' .. name, PREFIX .. 'returned:' .. name,
  PREFIX .. 'dead:' .. name, PREFIX .. 'done:' .. name, kept,
}
redis.call('EXISTS', KEYS[2], PREFIX .. 'flows:' .. tenant, unpack(keys))
local f = flow_read(name, CLASS_AT, nil, {})
flow_tally(f, f.was)
if f.depth > 0 or f.running > 0 then
  return { 0, 0 }
end
f.kept = tonumber(redis.call('HGET', f.key, 'kept')) or 0
local filed_as = pool_read(f, CLASS_AT)
flow_leaves(f, filed_as, string.match(filed_as, '^[+-](%S+)'), {})
local answers = redis.call('ZCARD', kept)

-- Write.
unlock()
if f.left then
  pool_leave(f)
end
stored_add(f, 'live', -f.live)
stored_add(f, 'dead_bytes', -f.dead_bytes)
stored_add(f, 'kept', -f.kept)
if f.class then
  redis.call('SREM', PREFIX .. 'class:' .. f.class, tenant)
end
redis.call('DEL', unpack(keys))
unfiled[#unfiled + 1] = name
redis.call('SREM', PREFIX .. 'flows:' .. tenant, name)
due_flush(tonumber(ARGV[2]))
clock_save()
return { 1, answers }
