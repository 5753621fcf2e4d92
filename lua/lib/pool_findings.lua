-- pool_findings: what repair compares of pools.

--! needs record clock turn flow filing findings
--! pools

local known = {} -- pools of the shard, as +NAME
local tiers = {} -- whose tenants are a class in pools
local sums = {} -- by pool: what its flows add up to

-- pools_sound reports whether the keys of all pools of the shard may be used.
local function pools_sound()
  local lines, all, classes, seen = redis.call('HGETALL', PREFIX .. 'lines'), true, {}, {}
  for i = 1, #lines, 2 do
    classes[#classes + 1] = lines[i]
    local tier = string.find(lines[i + 1], '^%S*;%u') and string.match(lines[i], '^([^/]+)/')
    if tier and not seen[tier] then
      tiers[#tiers + 1], seen[tier] = tier, true
    end
  end
  for i = 1, #classes do
    local short = string.match(classes[i], '^(%+.*)/$')
    if short then
      known[#known + 1], sums[short] = short, { flows = {}, depth = 0, bytes = 0, running = 0, queued = 0, cost = 0, owed = 0, weights = 0, reserves = 0 }
      if not all_sound(PREFIX .. 'flow:' .. short .. '/', 'hash', PREFIX .. 'flows:' .. short, 'set', PREFIX .. 'policy:' .. short, 'hash',
        PREFIX .. 'lines:' .. short, 'hash', PREFIX .. 'history:' .. short, 'list', PREFIX .. 'wait:' .. short, 'zset',
        PREFIX .. 'ready:' .. short, 'zset', PREFIX .. 'reserve:' .. short, 'zset') then
        all = false
      end
      for n = 1, #tiers do
        if not sound(PREFIX .. 'wait:' .. short .. '/' .. tiers[n], 'zset') then
          all = false
        end
      end
    end
  end
  return all
end

-- filed_in reports whether a flow is in an index of its pool, or in that of its class.
local function filed_in(f)
  local p, name, c = f.pool, f.name, f.line and f.pool.classes[f.line]
  if f.line then
    return c and redis.call('ZSCORE', c.index, name)
  end
  return redis.call('ZSCORE', p.wait_index, name) or redis.call('ZSCORE', p.ready_index, name)
end

-- misfiled compares where a flow is filed with its turn. A repair files it anew.
local function misfiled(f)
  local turn, p, name = redis.call('HGET', f.key, 'turn') or '', f.pool, f.name
  local short = string.match(turn, '^[+-](%S+)')
  if short and short ~= f.policy.pool and not f.left and not f.obeyed then
    find('misfiled', 'flow:' .. name, 'its turn is of a pool that its route is not in')
    flow_leaves(f, turn, short, {})
  end
  if not p then
    return
  end
  local t, wrong = f.turn, nil
  local waits = redis.call('ZSCORE', p.wait_index, name)
  local ready, reserved = redis.call('ZSCORE', p.ready_index, name), redis.call('ZSCORE', p.reserve_index, name)
  for i = 1, #p.class_list do
    local c = p.class_list[i]
    if c.name ~= f.line and redis.call('ZSCORE', c.index, name) then
      wrong = 'in the index of the class ' .. c.name .. ', which is not its own'
      c.unwait[#c.unwait + 1] = name
    end
  end
  if (f.line or not t.filed) and (waits or ready or reserved) then
    wrong = f.line and 'in an index of its pool, and its turn says in that of its class'
      or 'in an index of its pool, and its turn says in none'
    p.unready[#p.unready + 1], p.unwait[#p.unwait + 1] = name, name
  elseif waits and ready then
    wrong = 'in two indexes of its pool'
  elseif (reserved and true or false) ~= (ready and t.limit > 0 or false) then
    wrong = reserved and 'in the index of reserves, and no candidate with one' or 'a candidate missing in the index of reserves'
    p.unreserve[#p.unreserve + 1] = name
  elseif reserve_far_ahead(p, t, now) then
    wrong = format('its reserve is %d µs ahead of the clock of the reserves', t.tat - now + p.behind)
    turn_enter(p, t, now)
  end
  if wrong then
    find('misfiled', 'flow:' .. name, wrong)
    f.due_before = nil
  end
end

-- unfile takes a flow that was lost out of the indexes of all pools.
local function unfile(name)
  for i = 1, #known do
    redis.call('ZREM', PREFIX .. 'wait:' .. known[i], name)
    redis.call('ZREM', PREFIX .. 'ready:' .. known[i], name)
    redis.call('ZREM', PREFIX .. 'reserve:' .. known[i], name)
    for n = 1, #tiers do
      redis.call('ZREM', PREFIX .. 'wait:' .. known[i] .. '/' .. tiers[n], name)
    end
  end
end

-- pool_add adds the counts of a flow to the sums of its pool: depth, bytes, running, two others,
-- queued, cost, turn, and what it owes as the 11th.
local function pool_add(name, v)
  local is_filed, short = string.match(v[8] or '', '^([+-])(%S+)')
  local sum = sums[short or '']
  if not sum then
    return
  end
  sum.flows[name] = true
  sum.depth, sum.bytes, sum.running = sum.depth + v[1], sum.bytes + v[2], sum.running + v[3]
  sum.queued, sum.cost, sum.owed = sum.queued + v[6], sum.cost + v[7], sum.owed + (v[11] or 0)
  if is_filed == '+' then
    local p = pool_of(short, {})
    local t = turn_read(v[8], p)
    sum.weights, sum.reserves = sum.weights + t.weight, sum.reserves + reserve_a_second(t.limit, t.period)
  end
end

-- strangers finds the entries of an index of a pool whose flows are not in the pool.
local function strangers(index, flows)
  local members, strange = redis.call('ZRANGE', index, '0', '-1'), {}
  for i = 1, #members do
    if not flows[members[i]] then
      strange[#strange + 1] = members[i]
    end
  end
  if strange[1] then
    find('misfiled', sub(index, #PREFIX + 1), format('%d entries of flows that are not in the pool', #strange))
    if repair then
      in_parts('ZREM', index, strange, 1)
    end
  end
end

-- pools_compare compares the counts of the pools with the sums over their flows.
local function pools_compare(set)
  for i = 1, #known do
    local short = known[i]
    local sum = sums[short]
    if sum.depth + sum.running > 0 or exists(PREFIX .. 'flow:' .. short .. '/') then
      local p = pool_of(short, {})
      if p.healed[1] then
        find('misfiled', 'flow:' .. p.name, table.concat(p.healed, ', '))
        p.healed = {}
      end
      strangers(p.wait_index, sum.flows)
      strangers(p.ready_index, sum.flows)
      strangers(p.reserve_index, sum.flows)
      for n = 1, #p.class_list do
        local c = p.class_list[n]
        strangers(c.index, sum.flows)
        c.members = redis.call('ZCARD', c.index)
        c.counted = c.members > 0 and c.weight or 0
        sum.weights, sum.owed = sum.weights + c.counted, sum.owed + c.owed
      end
      set(p, 'counts', 'flow:' .. p.name, 'depth', sum.depth, 'bytes', sum.bytes, 'running', sum.running, 'queued', sum.queued,
        'cost', sum.cost, 'owed', sum.owed, 'weights', sum.weights, 'reserves', sum.reserves)
    end
  end
  if repair then
    due_flush(tonumber(ARGV[2]))
  end
end
