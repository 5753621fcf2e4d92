-- forget: the part of a poll that forgets tenants which were idle for ten minutes.
--
-- Guarantee: a tenant is forgotten only if it has no waiting, leased or dead jobs, no API override,
-- no departure charged to the future, no answers to forwarded requests, and at most LEFT_MOST
-- bytes of other answers and keys. A call reads about FLOWS_READ flows, and at least one tenant. Of
-- a tenant with more flows it reads a page, whose idle flows it forgets, and the shard keeps where
-- it stopped. What Redis has expired of a tenant that stays is subtracted from its counts. Of each
-- class it checks SAMPLE tenants, and removes those without a flow. Everything is read before the
-- first write.
--
-- KEYS, ARGV, Reply: as of tick
-- Derived keys: flow lines policy flows dead kept unlock tenants wait ready reserve class
-- Channels: wake

--! needs record clock stored flow finish poll

local IDLE_MOST = 32
local FLOWS_READ, PART = 256, 128 -- flows that one call reads, about; flows of one page of a tenant with more
local LEFT_MOST = 65536 -- bytes
local SAMPLE = 16 -- tenants of a class that one call checks
local OVERRIDDEN = 86400000000 -- µs until an idle tenant with API overrides is checked again

-- idle_flows reads some flows of a tenant into found: all, those that are idle, the bytes of
-- answers and keys that they have left, and whether a flow has dead letters or answers to forwarded
-- requests.
local function idle_flows(names, found)
  for n = 1, #names do
    local f = flow_load(names[n])
    found.flows[n] = f
    lapsed_of(f, retention.dead * 1000000)
    local idle = f.depth == 0 and f.running == 0 and not (f.pool and f.owed > 0) and math.max(f.seen, f.last, f.held, f.ready) < now - IDLE
    -- A replay needs the flow and its name in the index.
    if exists(PREFIX .. 'dead:' .. names[n]) or f.kept > f.kept_lapsed then
      found.needed, idle = true, false
    end
    for c = 1, #f.cells do
      idle = idle and f.cells[c].tat < now
    end
    found.left = found.left + aged_sum(f, ANSWERS, retention.succeeded * 1000000)
      + aged_sum(f, IDEMPOTENCY, math.max(retention.succeeded, retention.idempotency) * 1000000)
    if f.class then
      exists(PREFIX .. 'class:' .. f.class)
    end
    if idle then
      found.idle[#found.idle + 1] = f
    end
  end
end

-- look reads the flows of an idle tenant, or the next page of them if it has many.
local function look(tenant, index, many, found)
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
    exists(index)
  end
  found.read = #names
  idle_flows(names, found)
  found.cursor, found.overrides = cursor, overrides and not found.needed
  found.forgets = not overrides and found.left <= LEFT_MOST and (many or #found.idle == #names)
end

-- strays_of returns tenants of a random sample of a class that have no flows. A version without
-- classes has forgotten them.
local function strays_of(class)
  local found = {}
  local sample = redis.call('SRANDMEMBER', class, SAMPLE)
  for i = 1, #sample do
    local index = PREFIX .. 'flows:' .. sample[i]
    if not exists(index) then
      found[#found + 1] = sample[i]
    end
  end
  return found
end

local strays, fields = {}, redis.call('HKEYS', KEYS[1])
for i = 1, #fields do
  if sub(fields[i], 1, 6) == 'class:' then
    local ok, found = attempt(fields[i], strays_of, PREFIX .. fields[i])
    if ok and found[1] then
      strays[#strays + 1] = { PREFIX .. fields[i], unpack(found) }
    end
  end
end

local entries = redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now - IDLE, 'LIMIT', 0, IDLE_MOST)
local forgot, gone, later, keys, changes, lapsed, left, part, read = {}, {}, {}, {}, {}, {}, {}, nil, 0
for i = 1, #entries do
  local tenant = string.match(entries[i], '^%S+')
  local index = PREFIX .. 'flows:' .. tenant
  local ok, size = attempt('tenant ' .. tenant, redis.call, 'SCARD', index)
  local many = ok and size > FLOWS_READ
  local found = { index = index, flows = {}, idle = {}, left = 0, read = 0, cursor = '0' }
  if read > 0 and ok and read + size > FLOWS_READ then
    break
  end
  if ok then
    ok = attempt('tenant ' .. tenant, look, tenant, index, many, found)
  end
  read = read + found.read + 1
  local forgotten = found.forgets and found.idle or {}
  for n = 1, #forgotten do
    keys[#keys + 1], gone[#gone + 1] = forgotten[n].key, forgotten[n].name
    forgotten[n].forgot = true
  end
  for n = 1, #found.flows do
    local f = found.flows[n]
    if f.dead_lapsed then -- else reading it has failed
      lapsed_count(f)
    end
    local args = changed_numbers({}, FLOW_FIELDS, TALLIES_AT, TALLIES_END, f, f.was)
    if not f.forgot and (args[1] or (f.kept_lapsed or 0) > 0) then
      lapsed[#lapsed + 1], changes[#changes + 1] = f, args
    end
  end
  if many and ok then
    part = found -- the call ends with it
  end
  if found.forgets and #forgotten == size then
    forgot[#forgot + 1] = entries[i]
    keys[#keys + 1] = index
    for n = 1, #forgotten do
      left[#left + 1] = forgotten[n].class and { forgotten[n].class, tenant }
    end
  elseif found.overrides or found.cursor == '0' then
    later[#later + 1] = found.overrides and now + OVERRIDDEN or now
    later[#later + 1] = entries[i]
  else
    part.tenant = tenant
  end
end
start_writing()
for n = 1, #strays do
  redis.call('SREM', unpack(strays[n]))
end
for n = 1, #lapsed do
  local f = lapsed[n]
  if changes[n][1] then
    redis.call('HSET', f.key, unpack(changes[n]))
  end
  if f.dead_lapsed then
    lapsed_trim(f, retention.dead * 1000000)
  end
end
for n = 1, #left do
  redis.call('SREM', PREFIX .. 'class:' .. left[n][1], left[n][2])
end
in_parts('DEL', nil, keys, 1)
-- One that has moved into a pool may still be due by its former paces.
in_parts('ZREM', KEYS[2], gone, 1)
if part then
  local names = {}
  for n = 1, part.forgets and #part.idle or 0 do
    names[n] = part.idle[n].name
  end
  in_parts('SREM', part.index, names, 1)
  if part.tenant then
    redis.call('HSET', KEYS[1], 'forgets', part.tenant .. ' ' .. part.cursor)
  end
end
if forgot[1] then
  redis.call('ZREM', KEYS[6], unpack(forgot))
end
if later[1] then
  redis.call('ZADD', KEYS[6], unpack(later))
end
return answer(head(KEYS[6]) < now - IDLE)
