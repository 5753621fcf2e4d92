-- retune: the part of a poll that makes all flows obey new policies of the shard.
--
-- Guarantee: each call makes the flows of some more tenants due, so that the next polls retune
-- them. Leasing goes on in between. The shard keeps the cursor, so a lost call is repeated.
-- Everything is read before the first write.
--
-- KEYS, ARGV, Reply: as of tick
-- Derived keys: flows unlock tenants
-- Channels: wake

--! include record clock turn pool policy bucket stored flow filing finish poll

local TENANTS_MOST = 200 -- about how many tenants one call reads

if clock.looked == '0' then
  return answer(true)
end
local found = redis.call('ZSCAN', KEYS[6], clock.looked, 'COUNT', TENANTS_MOST)
local entries, names = found[2], {}
for i = 1, #entries, 2 do
  local flows_of = PREFIX .. 'flows:' .. string.match(entries[i], '^%S+')
  local ok, of_tenant = attempt(flows_of, redis.call, 'SMEMBERS', flows_of)
  if not ok or #of_tenant == 0 then
    absent(flows_of)
  end
  for n = 1, ok and #of_tenant or 0 do
    names[#names + 1] = of_tenant[n]
  end
end
start_writing()
for i = 1, #names do
  redis.call('ZADD', KEYS[2], now, names[i])
end
clock.looked = found[1]
redis.call('HSET', KEYS[1], 'looked', clock.looked)
return answer(true)
