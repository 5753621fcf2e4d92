-- forget: the part of a poll that forgets tenants which were idle for ten minutes.
--
-- Guarantee: a tenant is forgotten only if it has no waiting, leased or dead jobs, no API override,
-- no departure charged to the future, no answers to forwarded requests, and at most LEFT_MOST
-- bytes of other answers and keys. A call reads about FLOWS_READ flows, and at least one tenant. Of
-- a tenant with more flows it reads a page, whose idle flows it forgets, and the shard keeps where
-- it stopped. Everything is read before the first write.
--
-- KEYS, ARGV, Reply: as of tick
-- Derived keys: flow lines policy flows dead kept unlock tenants wait ready reserve class
-- Channels: wake

--! include record clock turn pool policy bucket stored flow filing finish poll

local IDLE_MOST = 64
local FLOWS_READ, PART = 256, 128 -- flows that one call reads, about; flows of one page of a tenant with more
local LEFT_MOST = 65536 -- bytes
local OVERRIDDEN = 86400000000 -- µs until an idle tenant with API overrides is checked again

-- idle_flows reads some flows of a tenant. It returns the names of those that are idle; the bytes
-- of their dead letters, each with the flow's class; the bytes of answers and keys that they have
-- left; the flows whose answers to forwarded requests Redis has all deleted, with the bytes that
-- are still counted; and whether a flow has such answers.
local function idle_flows(names)
  local found = { names = {}, dead = {}, left = 0, lapsed = {}, kept = false, all = #names }
  for n = 1, #names do
    local f = flow_load(names[n])
    local idle = f.depth == 0 and f.running == 0 and math.max(f.seen, f.last, f.held) < now - IDLE
    -- A replay needs the flow and its name in the index.
    idle = idle and redis.call('EXISTS', PREFIX .. 'dead:' .. names[n]) == 0
    if redis.call('EXISTS', PREFIX .. 'kept:' .. names[n]) == 1 then
      found.kept, idle = true, false
    else
      found.lapsed[#found.lapsed + 1] = { f.key, tonumber(redis.call('HGET', f.key, 'kept')) or 0, f.class }
    end
    for c = 1, #f.cells do
      idle = idle and f.cells[c].tat < now
    end
    found.left = found.left + aged_sum(f, ANSWERS, retention.succeeded * 1000000)
      + aged_sum(f, IDEMPOTENCY, math.max(retention.succeeded, retention.idempotency) * 1000000)
    if f.class then
      redis.call('EXISTS', PREFIX .. 'class:' .. f.class)
    end
    if idle then
      found.dead[#found.dead + 1] = { f.dead_bytes, f.class }
      found.names[#found.names + 1] = names[n]
    end
  end
  return found
end

-- look reads the flows of an idle tenant, or the next page of them if it has many.
local function look(tenant, index, many)
  local overrides = (redis.call('HGET', PREFIX .. 'policy:' .. tenant, 'api') or '') ~= ''
  local names, cursor = nil, '0'
  if many then
    local stopped, from = string.match(redis.call('HGET', KEYS[1], 'forgets') or '', '^(%S+) (%d+)$')
    local page = redis.call('SSCAN', index, stopped == tenant and from or '0', 'COUNT', PART)
    cursor, names = page[1], page[2]
  else
    names = redis.call('SMEMBERS', index)
  end
  if #names == 0 then
    absent(index)
  end
  local found = idle_flows(names)
  found.index, found.cursor, found.overrides = index, cursor, overrides and not found.kept
  found.idle = not overrides and found.left <= LEFT_MOST and (many or #found.names == #names)
  return found
end

-- lose subtracts bytes that are no longer stored of a flow of a class.
local function lose(bytes, class)
  clock.stored = math.max(0, clock.stored - bytes)
  class_add(class, -bytes)
end

local entries = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now - IDLE, 'LIMIT', 0, IDLE_MOST)
local gone, kept, keys, lapsed, left, part, read = {}, {}, {}, {}, {}, nil, 0
for i = 1, #entries do
  local tenant = string.match(entries[i], '^%S+')
  local index = PREFIX .. 'flows:' .. tenant
  local ok, size = attempt('tenant ' .. tenant, redis.call, 'SCARD', index)
  local many, found = ok and size > FLOWS_READ, nil
  if read > 0 and ok and read + size > FLOWS_READ then
    break
  end
  if ok then
    ok, found = attempt('tenant ' .. tenant, look, tenant, index, many)
  end
  found = ok and found or { names = {}, lapsed = {}, cursor = '0', all = 0 }
  read = read + found.all + 1
  for n = 1, #found.lapsed do
    local bytes = found.lapsed[n][2]
    if bytes > 0 then
      lose(bytes, found.lapsed[n][3])
      lapsed[#lapsed + 1] = found.lapsed[n][1]
    end
  end
  local forgotten = found.idle and found.names or {}
  for n = 1, #forgotten do
    keys[#keys + 1] = PREFIX .. 'flow:' .. forgotten[n]
    lose(unpack(found.dead[n], 1, 2))
  end
  if many and ok then
    part = found -- the call ends with it
  end
  if found.idle and #forgotten == size then
    gone[#gone + 1] = entries[i]
    keys[#keys + 1] = index
    for n = 1, #forgotten do
      left[#left + 1] = found.dead[n][2] and { found.dead[n][2], tenant }
    end
  elseif found.overrides or found.cursor == '0' then
    kept[#kept + 1] = found.overrides and now + OVERRIDDEN or now
    kept[#kept + 1] = entries[i]
  else
    part.tenant = tenant
  end
end
start_writing()
for n = 1, #lapsed do
  redis.call('HDEL', lapsed[n], 'kept')
end
for n = 1, #left do
  redis.call('SREM', PREFIX .. 'class:' .. left[n][1], left[n][2])
end
in_parts('DEL', nil, keys, 1)
if part then
  in_parts('SREM', part.index, part.idle and part.names or {}, 1)
  if part.tenant then
    redis.call('HSET', KEYS[1], 'forgets', part.tenant .. ' ' .. part.cursor)
  end
end
if gone[1] then
  redis.call('ZREM', KEYS[6], unpack(gone))
end
if kept[1] then
  redis.call('ZADD', KEYS[6], unpack(kept))
end
return answer(head(KEYS[6]) < now - IDLE)
