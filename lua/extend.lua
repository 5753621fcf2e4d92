-- extend: extend leases of one shard.
--
-- Guarantee: only a current lease is extended; a lease never becomes shorter.
--
-- KEYS
--   1 clock   2 leases
--   then per lease: job
-- ARGV
--   1 instant in µs, or '' for the server's   2 lease in µs
--   then per lease: epoch
-- Reply
--   now, then per lease: 1 extended, 0 no longer current
-- Derived keys: unlock tenants
-- Channels: (none)

--! needs record clock

clock_load(ARGV[1])
local lease = tonumber(ARGV[2])
redis.call('EXISTS', KEYS[2])
local reply, ends = { now }, {}
for k = 3, #KEYS do
  local head = redis.call('GETRANGE', KEYS[k], 0, HEAD - 1)
  local current = #head == HEAD and sub(head, STATE_AT, STATE_END) == 'l'
    and n32(head, EPOCH_AT) == tonumber(ARGV[k])
  reply[k - 1] = current and 1 or 0
  if current then
    ends[#ends + 1] = now + lease
    ends[#ends + 1] = sub(KEYS[k], #PREFIX + 5)
  end
end
unlock()
for from = 1, #ends, 500 do
  redis.call('ZADD', KEYS[2], 'GT', unpack(ends, from, math.min(from + 499, #ends)))
end
if #ends > 0 then
  clock_save()
end
return reply
