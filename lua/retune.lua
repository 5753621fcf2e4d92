-- retune: the part of a poll that makes all flows obey new policies of the shard.
--
-- Guarantee: each call files some more of the flows that have jobs by the policies in force. A flow
-- without jobs needs nothing: it obeys them when it is next touched. Leasing goes on in between.
-- The shard keeps how far the scan has come, so a lost call is repeated. A damaged flow is reported
-- and left as it is. Everything is read before the first write.
--
-- KEYS, ARGV, Reply: as of tick
-- Derived keys: flow later lines done flows unlock tenants wait ready reserve
-- Channels: wake

--! needs clock pools filing finish poll

local TENANTS = 32 -- about how many of one page; of a small index Redis returns all
-- Flows that one call looks at and files, about, with one more looked at for each tenant; flows of
-- one page of a tenant.
local LOOKED_MOST, FILED_MOST, PART = 64, 64, 64

if clock.looked == '0' then
  return answer(true)
end

-- The field within names where the last call stopped inside a page: the revision, the cursor of the
-- page, the tenant, and the cursor of its flows.
local stopped_at = redis.call('HGET', KEYS[1], 'within') or ''
local revision, of_page, from_tenant, from_flow = string.match(stopped_at, '^(%S+) (%S+) (%S+) (%S+)$')
if revision ~= clock.revision or of_page ~= clock.looked then
  from_tenant = nil
end

local page = redis.call('ZSCAN', KEYS[6], clock.looked, 'COUNT', TENANTS)
local tenants, looked = {}, 0
for i = 1, #page[2], 2 do
  tenants[#tenants + 1] = string.match(page[2][i], '^%S+')
end
table.sort(tenants)

-- visit loads a flow that has jobs.
local function visit(name)
  local counts = redis.call('HMGET', PREFIX .. 'flow:' .. name, 'depth', 'running')
  if names_pool(name) or (counts[1] or '0') == '0' and (counts[2] or '0') == '0' then
    return
  end
  local f = flow(name)
  local p = f.pool
  if not p then
    return
  end
  unfiled[#unfiled + 1] = name -- its route may have joined the pool
  -- Saving the flow replaces such an entry, and the report has repair look for others.
  if not f.turn.filed and (redis.call('ZSCORE', p.wait_index, name) or redis.call('ZSCORE', p.ready_index, name)) then
    error('in an index of its pool, and its turn says in none')
  end
end

-- flows_from visits the flows of a tenant from a cursor on. It returns where it stopped, '0' at the
-- end.
local function flows_from(tenant, cursor)
  local index = PREFIX .. 'flows:' .. tenant
  repeat
    local ok, found = attempt(index, redis.call, 'SSCAN', index, cursor, 'COUNT', PART)
    if not ok then
      return '0'
    end
    local names = found[2]
    if not names[1] then
      exists(index)
    end
    for n = 1, #names do
      attempt('flow ' .. names[n], visit, names[n])
    end
    cursor, looked = found[1], looked + #names + 1
  until cursor == '0' or looked >= LOOKED_MOST or #touched >= FILED_MOST
  return cursor
end

local within = ''
for i = 1, #tenants do
  local tenant = tenants[i]
  if not from_tenant or tenant >= from_tenant then
    if looked >= LOOKED_MOST or #touched >= FILED_MOST then
      within = tenant .. ' 0'
      break
    end
    local cursor = flows_from(tenant, tenant == from_tenant and from_flow or '0')
    if cursor ~= '0' then
      within = tenant .. ' ' .. cursor
      break
    end
  end
end
start_writing()
if within ~= '' then
  redis.call('HSET', KEYS[1], 'within', clock.revision .. ' ' .. clock.looked .. ' ' .. within)
else
  clock.looked = page[1]
  redis.call('HSET', KEYS[1], 'looked', clock.looked)
  if of_page then
    redis.call('HDEL', KEYS[1], 'within')
  end
end
save_flows(touched, helper and horizon)
return answer(true)
