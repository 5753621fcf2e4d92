-- forget: the part of a poll that forgets tenants which were idle for ten minutes.
--
-- Guarantee: a tenant is forgotten only if it has no waiting, leased or dead jobs, no API override,
-- no departure charged to the future, no answers to forwarded requests, and at most LEFT_MOST
-- bytes of other answers and keys. Everything is read before the first write.
--
-- KEYS, ARGV, Reply: as of tick
-- Derived keys: flow lines policy flows dead kept unlock tenants wait ready reserve
-- Channels: wake

--! include record clock turn pool policy bucket stored flow filing finish poll

local IDLE_MOST = 64
local LEFT_MOST = 65536 -- bytes
local OVERRIDDEN = 86400000000 -- µs until an idle tenant with API overrides is checked again

-- idle_keys returns the keys of an idle tenant, false for any other; whether an API override alone
-- keeps the tenant; the bytes of its dead letters; and the flows whose answers to forwarded
-- requests Redis has all deleted, with the bytes that are still counted.
local function idle_keys(tenant)
  local overrides = (redis.call('HGET', PREFIX .. 'policy:' .. tenant, 'api') or '') ~= ''
  local idle, left, dead, keys = not overrides, 0, 0, { PREFIX .. 'flows:' .. tenant }
  local kept, lapsed = false, {}
  local names = redis.call('SMEMBERS', keys[1])
  if #names == 0 then
    absent(keys[1])
  end
  for n = 1, #names do
    local f = flow_load(names[n])
    idle = idle and f.depth == 0 and f.running == 0 and math.max(f.seen, f.last, f.held) < now - IDLE
    -- A replay needs the flow and its name in the index.
    idle = idle and redis.call('EXISTS', PREFIX .. 'dead:' .. names[n]) == 0
    if redis.call('EXISTS', PREFIX .. 'kept:' .. names[n]) == 1 then
      kept, idle = true, false
    else
      lapsed[#lapsed + 1] = { f.key, tonumber(redis.call('HGET', f.key, 'kept')) or 0 }
    end
    for c = 1, #f.cells do
      idle = idle and f.cells[c].tat < now
    end
    left = left + aged_sum(f, ANSWERS, retention.succeeded * 1000000)
      + aged_sum(f, IDEMPOTENCY, math.max(retention.succeeded, retention.idempotency) * 1000000)
    dead = dead + f.dead_bytes
    keys[#keys + 1] = PREFIX .. 'flow:' .. names[n]
  end
  idle = idle and left <= LEFT_MOST
  if kept then
    overrides = false
  end
  return { keys = idle and keys, overrides = overrides, dead = dead, lapsed = lapsed }
end

local entries = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now - IDLE, 'LIMIT', 0, IDLE_MOST)
local gone, kept, keys, lapsed = {}, {}, {}, {}
for i = 1, #entries do
  local tenant = string.match(entries[i], '^%S+')
  local ok, found = attempt('tenant ' .. tenant, idle_keys, tenant)
  for n = 1, ok and #found.lapsed or 0 do
    local bytes = found.lapsed[n][2]
    if bytes > 0 then
      clock.stored = math.max(0, clock.stored - bytes)
      lapsed[#lapsed + 1] = found.lapsed[n][1]
    end
  end
  if ok and found.keys then
    gone[#gone + 1] = entries[i]
    clock.stored = math.max(0, clock.stored - found.dead)
    for n = 1, #found.keys do
      keys[#keys + 1] = found.keys[n]
    end
  else
    kept[#kept + 1] = ok and found.overrides and now + OVERRIDDEN or now
    kept[#kept + 1] = entries[i]
  end
end
start_writing()
for n = 1, #lapsed do
  redis.call('HDEL', lapsed[n], 'kept')
end
if gone[1] then
  redis.call('DEL', unpack(keys))
  redis.call('ZREM', KEYS[6], unpack(gone))
end
if kept[1] then
  redis.call('ZADD', KEYS[6], unpack(kept))
end
return answer(head(KEYS[6]) < now - IDLE)
