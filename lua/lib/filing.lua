-- filing: where flows and pools are filed by the instant of their next possible stamp: KEYS[2], the
-- index due, and the indexes of pools.

-- flow_due is the next instant at which a job of the flow may leave, nil when none can.
local function flow_due(f, later)
  local p = f.policy
  if p.paused or (p.concurrency > 0 and f.running >= p.concurrency) then
    return nil
  end
  if f.queued > 0 then
    return earliest(f)
  end
  return later and max(earliest(f), later)
end

-- pool_due is the next instant at which a pool may give a stamp, nil when it cannot.
local function pool_due(p)
  if p.policy.paused or p.policy.concurrency > 0 and p.running >= p.policy.concurrency then
    return nil
  elseif redis.call('EXISTS', p.ready_index) == 1 then
    return earliest(p)
  end
  local head = redis.call('ZRANGE', p.wait_index, 0, 0, 'WITHSCORES')
  return head[2] and max(earliest(p), tonumber(head[2]))
end

-- pool_file files a flow in its pool under its next possible stamp, nil for none.
local function pool_file(f, due)
  local p, t = f.pool, f.turn
  if due and due == f.due_before then
    return
  end
  if t.filed then
    p.weights, p.reserves = p.weights - t.weight, p.reserves - reserve_a_second(t.limit, t.period)
    p.unready[#p.unready + 1] = f.name
    p.ready_add[f.name], p.reserve_add[f.name] = nil, nil
  end
  t.filed = due ~= nil
  turn_obey(t, f.policy)
  if due then
    p.weights, p.reserves = p.weights + t.weight, p.reserves + reserve_a_second(t.limit, t.period)
    p.wait[#p.wait + 1] = format('%d', due)
    p.wait[#p.wait + 1] = f.name
  else
    p.unwait[#p.unwait + 1] = f.name
  end
  f.due_before = due
end

-- hinder stores why jobs of a flow cannot leave, apart from its policy: a cause as limited_by shows
-- it, and the instant until which it holds. A later cause replaces it.
local function hinder(f, cause, till)
  redis.call('HSET', f.key, 'hindered', format('%d:', till) .. cause)
end

local filed, unfiled = {}, {} -- flows to add to the index of due flows, and to remove from it

-- due_save files the flow under its next possible stamp; flow_save and due_flush write it. If
-- horizon is given, it wakes the owner when that is before the planned poll.
local function due_save(f, later, horizon)
  if is_pool(f.name) then
    return -- pools_save does it
  end
  local due = flow_due(f, later)
  if f.pool then
    pool_file(f, due)
  elseif due then
    filed[#filed + 1] = format('%d', due)
    filed[#filed + 1] = f.name
    if horizon then
      wake_for(due, horizon)
    end
  else
    unfiled[#unfiled + 1] = f.name
  end
end

-- last_first reverses a list of scores and members in ascending order, for ZADD. Redis walks a
-- small index from its head to each new member, so the greatest score should come first. In batches
-- of a hundred this saves 10 % of a job's instructions in Redis.
local function last_first(list)
  local i, k = 1, #list - 1
  while i < k do
    list[i], list[i + 1], list[k], list[k + 1] = list[k], list[k + 1], list[i], list[i + 1]
    i, k = i + 2, k - 2
  end
  return list
end

-- rebase keeps the virtual times of a pool small.
local function rebase(p)
  local by, ready = p.virtual, p.ready_index
  local starts, again = redis.call('ZRANGE', ready, 0, -1, 'WITHSCORES'), {}
  for i = 1, #starts, 2 do
    again[i], again[i + 1] = format('%d', max(0, starts[i + 1] - by)), starts[i]
  end
  in_parts('ZADD', ready, again, 1)
  p.virtual = 0
end

-- scored returns scores by member as arguments of ZADD.
local function scored(scores)
  local list = {}
  for member, score in pairs(scores) do
    list[#list + 1], list[#list + 2] = format('%d', score), member
  end
  return list
end

-- pools_save writes the pools that were read, and files each under its next possible stamp.
local function pools_save(horizon)
  for i = 1, #pool_list do
    local p = pool_list[i]
    local wait, ready, reserve = p.wait_index, p.ready_index, p.reserve_index
    if p.fresh then
      redis.call('SADD', PREFIX .. 'flows:' .. p.short, p.name)
      p.fresh = false
    end
    in_parts('ZREM', ready, p.unready, 1)
    in_parts('ZREM', reserve, p.unready, 1)
    in_parts('ZREM', wait, p.unwait, 1)
    in_parts('ZADD', wait, last_first(p.wait), 1)
    in_parts('ZADD', ready, scored(p.ready_add), 1)
    in_parts('ZADD', reserve, scored(p.reserve_add), 1)
    p.wait, p.unwait, p.unready, p.ready_add, p.reserve_add = {}, {}, {}, {}, {}
    if p.virtual >= REBASE_AT then
      rebase(p)
    end
    flow_save(p)
    local args = changed_numbers({}, POOL_FIELDS, 1, #POOL_FIELDS, p, p.fields)
    if args[1] then
      redis.call('HSET', p.key, unpack(args))
    end
    local due = pool_due(p)
    if due then
      filed[#filed + 1] = format('%d', due)
      filed[#filed + 1] = p.name
      if horizon then
        wake_for(due, horizon)
      end
    else
      unfiled[#unfiled + 1] = p.name
    end
  end
end

-- due_flush writes what due_save has filed, of at most 1,000 flows, and the pools. It wakes the
-- owner for a pool if horizon is given.
local function due_flush(horizon)
  pools_save(horizon)
  if #filed > 0 then
    redis.call('ZADD', KEYS[2], unpack(filed))
  end
  if #unfiled > 0 then
    redis.call('ZREM', KEYS[2], unpack(unfiled))
  end
end
