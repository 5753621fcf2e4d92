-- pool_findings: what mend compares of pools.

local known = {} -- pools of the shard, as +NAME
local sums = {} -- by pool: what its flows add up to

-- pools_sound reports whether the keys of all pools of the shard may be used.
local function pools_sound()
  local classes, all = redis.call('HKEYS', PREFIX .. 'lines'), true
  for i = 1, #classes do
    local short = string.match(classes[i], '^(%+.*)/$')
    if short then
      known[#known + 1], sums[short] = short, { depth = 0, bytes = 0, running = 0, queued = 0, cost = 0, weights = 0, reserves = 0 }
      if not all_sound(PREFIX .. 'flow:' .. short .. '/', 'hash', PREFIX .. 'flows:' .. short, 'set', PREFIX .. 'policy:' .. short, 'hash',
        PREFIX .. 'lines:' .. short, 'hash', PREFIX .. 'history:' .. short, 'list', PREFIX .. 'wait:' .. short, 'zset',
        PREFIX .. 'ready:' .. short, 'zset', PREFIX .. 'reserve:' .. short, 'zset') then
        all = false
      end
    end
  end
  return all
end

-- filed_in reports whether a flow is in an index of its pool.
local function filed_in(p, name)
  return redis.call('ZSCORE', p.wait_index, name) or redis.call('ZSCORE', p.ready_index, name)
end

-- unfile takes a flow that was lost out of the indexes of all pools.
local function unfile(name)
  for i = 1, #known do
    redis.call('ZREM', PREFIX .. 'wait:' .. known[i], name)
    redis.call('ZREM', PREFIX .. 'ready:' .. known[i], name)
    redis.call('ZREM', PREFIX .. 'reserve:' .. known[i], name)
  end
end

-- pool_add adds the counts of a flow to the sums of its pool: depth, bytes, running, two others,
-- queued, cost and turn.
local function pool_add(v)
  local is_filed, short = string.match(v[8] or '', '^([+-])(%S+)')
  local sum = sums[short or '']
  if not sum then
    return
  end
  sum.depth, sum.bytes, sum.running = sum.depth + v[1], sum.bytes + v[2], sum.running + v[3]
  sum.queued, sum.cost = sum.queued + v[6], sum.cost + v[7]
  if is_filed == '+' then
    pool_of(short, {})
    local t = pooling.turn_read(v[8], { short = short })
    sum.weights, sum.reserves = sum.weights + t.weight, sum.reserves + pooling.reserve_a_second(t.limit, t.period)
  end
end

-- pools_compare compares the counts of the pools with the sums over their flows.
local function pools_compare(set)
  for i = 1, #known do
    local short = known[i]
    local sum = sums[short]
    if sum.depth + sum.running > 0 or redis.call('EXISTS', PREFIX .. 'flow:' .. short .. '/') == 1 then
      local p = pool_of(short, {})
      set(p, 'counts', 'flow:' .. p.name, 'depth', sum.depth, 'bytes', sum.bytes, 'running', sum.running, 'queued', sum.queued,
        'cost', sum.cost, 'weights', sum.weights, 'reserves', sum.reserves)
    end
  end
  if repair then
    due_flush(tonumber(ARGV[2]))
  end
end
