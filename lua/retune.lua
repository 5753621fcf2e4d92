-- retune: the part of a poll that makes all flows obey new policies of the shard.
--
-- Guarantee: each call makes the flows of some more tenants due, so that the next polls retune
-- them; leasing goes on in between. The shard keeps the cursor, so that a call that is lost is made
-- up for. Everything is read before the first write.
--
-- KEYS
--   as of tick
-- ARGV
--   as of tick
-- Reply
--   as of tick
-- Derived keys: flows unlock tenants
-- Channels: sluice:wake

--! include record clock policy bucket stored flow finish poll

local TENANTS_MOST = 200

-- scan_flows reads the flows of the next tenants that are to obey. The shard keeps the cursor
-- between two polls.
local function scan_flows()
  local found = redis.call('ZSCAN', KEYS[6], clock.looked, 'COUNT', TENANTS_MOST)
  local entries, names = found[2], {}
  for i = 1, #entries, 2 do
    local flows_of = PREFIX .. 'flows:' .. string.match(entries[i], '^%S+')
    local ok, of_tenant = attempt(flows_of, redis.call, 'SMEMBERS', flows_of)
    of_tenant = ok and of_tenant or {}
    if #of_tenant == 0 then
      absent(flows_of)
    end
    names[#names + 1] = of_tenant
  end
  return { names = names, cursor = found[1] }
end

-- scan_write makes the flows that were read due at once, so that a poll retunes each.
local function scan_write(scan)
  for i = 1, #scan.names do
    for n = 1, #scan.names[i] do
      redis.call('ZADD', KEYS[2], now, scan.names[i][n])
    end
  end
  clock.looked = scan.cursor
  redis.call('HSET', KEYS[1], 'looked', clock.looked)
end

if clock.looked == '0' then
  return answer(true)
end
local scan = scan_flows()
start_writing()
scan_write(scan)
return answer(true)
