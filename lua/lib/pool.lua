-- pool: how flows share the rate of their pool: where pools and their flows are stored and filed.
--
-- A pool is stored as a flow named +NAME/, whose bucket gives the stamps and whose counts are the
-- sums of its flows. It is filed in due under the next instant at which it may give a stamp. Its
-- flows are not in due. A flow that has a job to give is in one of two indexes:
--   wait:+NAME      by the instant of its next possible stamp
--   ready:+NAME     by its virtual start: the candidates
-- and a candidate with a reserve is in reserve:+NAME, too, by the instant from which it is
-- reserved. A flow of a class is in neither: its place is in
--   wait:+NAME/CLASS   by the instant of its next possible stamp
-- and the class is one candidate while the first of them is due. That one leaves when the class is
-- picked.
--
-- Fields of a pool, beside those of a flow:
--   virtual, behind     of shaper.Pool
--   probe               while answers to several parties hold the pool: when the next job may leave
--     as a probe
--   watched, asked, refused   what is known of the upstream's answers, see lib/answered.lua
--   weights, reserves   sums over the flows in the indexes; reserves in millionths of a cost a
--     second. A class adds its weight once
--   classes             for each class with flows in the indexes, or ahead of the virtual time, or
--     that owes: its name, virtual start and remainder, the last stamp for which it was a
--     candidate, or the instant before which it is none, see shaper.Pool.Spare, its weight, what of
--     that is in weights, and what it owes
--   earlier_cost, changed_cost, ahead   Earlier, Changed and Ahead of shaper.Pool
--   owed                what its flows and classes owe together
--   spared              Spared of shaper.Pool
--   awaited:CLASS       Due and Departed of shaper.Awaited
-- The field owed of a flow is what it owes: see shaper.Pool.Exceed. Its field awaited is as that of
-- a class. Its field extra is what its departures have cost beyond one each, and that of a pool the
-- same for all flows that were in it.

--! needs clock pools policy bucket turn
--! pools

local REBASE_AT = 4503599627370496 -- of shaper.Pool
local COST_SPAN, COST_MOST = 10000000, 1000000 -- µs and intervals, as in shaper.Policy.PoolCost
local SPACED_BY = 16 -- intervals at the least share of a rate
local CLASS_IN_POOL = '(%S+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)'
local HELD_MOST = 2000000 -- µs; more than a horizon and a step of shaper.Pool.Spare
local REPAY_SPAN = 20000 -- µs; shaper.repaySpan
local OWN = { 'virtual', 'behind', 'weights', 'reserves', 'probe', 'watched', 'earlier_cost',
  'changed_cost', 'ahead', 'owed', 'spared' } -- fields of a pool
local OF_FLOW = { 'turn', 'owed' } -- fields of a flow in a pool

-- pool_fields are the first fields of a pool or a flow. Behind them are those of its own of a pool,
-- its classes last, or the turn of a flow and what it owes.
local field_lists = { [true] = {}, [false] = {} }
local function pool_fields(is_pool, fields, last)
  local list = field_lists[is_pool][last]
  if not list then
    list = { unpack(fields, 1, last) }
    local own = is_pool and OWN or OF_FLOW
    for i = 1, #own do
      list[last + i] = own[i]
    end
    if is_pool then
      list[#list + 1] = 'classes'
    end
    field_lists[is_pool][last] = list
  end
  return list
end

-- pool_cost is the greatest charge of a job to a pool with the policy: shaper.Policy.PoolCost.
local function pool_cost(policy)
  local most = policy.pool_cost
  if not most then
    most = policy.max_cost or COST_MOST
    for i = 1, policy.max_cost and 0 or #policy.paces do
      local p = policy.paces[i]
      if not p.by_jobs then
        most = math.min(most, math.max(math.floor(p.limit * COST_SPAN / p.period), p.burst))
      end
    end
    most = math.min(COST_MOST, math.max(1, most))
    policy.pool_cost = most
  end
  return most
end

-- pool_charge is what a job of the cost is charged for in a pool: shaper.Pool.Charge.
local function pool_charge(p, cost)
  return math.min(cost, pool_cost(p.policy))
end

-- pool_beyond_one is how much longer than one interval a job of the cost takes the pool, in µs:
-- shaper.Pool.beyondOne.
local function pool_beyond_one(p, cost)
  local span = 0
  for i = 1, #p.cells do
    local c = p.cells[i]
    if not c.by_jobs then
      span = math.max(span, math.floor((pool_charge(p, cost) - 1) * c.period / c.limit))
    end
  end
  return span
end

-- pool_charge_of is what counts of a cost of a job that departed at the stamp:
-- shaper.Pool.ChargeOf.
local function pool_charge_of(p, cost, stamp)
  if p.earlier_cost > 0 and stamp <= p.changed_cost then
    cost = math.min(cost, p.earlier_cost)
  end
  return pool_charge(p, cost)
end

-- pool_bounded notes that the policy of a pool has another bound of costs now: shaper.Pool.Bounded.
local function pool_bounded(p)
  local before = p.cost_before
  p.cost_before = pool_cost(p.policy)
  if before and before ~= p.cost_before then
    p.earlier_cost = p.running > 0 and p.earlier_cost > 0 and math.min(p.earlier_cost, before) or before
    p.changed_cost, p.ahead = math.max(now, p.last), 0
  end
end

-- pool_limit_ahead brings back each TAT of a pool that is further ahead than a job of the cost may
-- take it, and beyond ahead: shaper.Bucket.Limit.
local function pool_limit_ahead(p, cost, ahead)
  local base = math.max(now, p.last)
  for i = 1, #p.cells do
    local c = p.cells[i]
    local most = base + 1 + math.floor((c.burst - 1 + charged(c, 1, cost)) * c.period / c.limit)
    most = math.max(most, ahead)
    if c.tat > most then
      c.tat, c.rem, p.moved = most, 0, true
    end
  end
  if p.spaced > base and p.cells[1] then
    local c = p.cells[1]
    p.spaced = math.min(p.spaced,
      base + math.min(SPACED_MOST, math.ceil(cost * c.period / c.limit * SPACED_BY)))
  end
end

-- count_cost counts what departures of a flow cost the pool beyond one each.
local function count_cost(f, extra)
  local p = f.pool
  f.extra, p.extra = (f.extra or 0) + extra, (p.extra or 0) + extra
end

-- pool_owe adds to what a party owes to its pool.
local function pool_owe(p, party, cost)
  party.owed, p.owed = party.owed + cost, math.max(0, p.owed + cost)
end

-- pool_exceed is shaper.Pool.Exceed: it returns what of the actual cost of a departure counts at
-- once. The flow or its class owes the rest.
local function pool_exceed(f, before, after)
  local p, t, more = f.pool, turn_current(f), after - before
  local party = t and t ~= f.turn and t or f
  if party.owed > 0 or p.owed + more <= pool_cost(p.policy) then
    pool_owe(p, party, more)
    return before
  end
  correct(p, before, after - 1)
  for i = 1, #p.cells do
    p.ahead = math.max(p.ahead, p.cells[i].tat)
  end
  pool_owe(p, party, 1)
  return after - 1
end

-- pool_repays is what a party repays at its turn at the slot, of what it owes, and the part of that
-- for which the pool has unused time: shaper.Pool.Repays. due is when another comes, or nil.
local function pool_repays(p, owed, slot, due)
  local cost, unused = pool_charge(p, owed), owed
  local span = due and math.min(REPAY_SPAN, due - slot) or REPAY_SPAN
  for i = 1, #p.cells do
    local c = p.cells[i]
    if not c.by_jobs then
      cost = math.min(cost, math.max(1, math.floor(c.limit * span / c.period)))
      unused = math.min(unused, math.max(0, math.floor((slot - c.tat) * c.limit / c.period)))
    end
  end
  return math.min(owed, cost + unused), unused
end

-- pool_before is the cost that the pool gives away before a job of a flow that has the given cost
-- waiting before it there, and how many jobs that is: shaper.Shared.Before.
local function pool_before(p, f, ahead)
  local most, queued = pool_cost(p.policy), p.queued
  local all, class = queued * most, f.policy.class and p.classes[f.policy.class]
  if p.cost < all then
    all = p.cost
  end
  if f.queued * most < ahead then
    ahead = f.queued * most
  end
  local cost = cost_before(p, f, ahead, all, most, f.owed + (class and class.owed or 0))
  if cost == all then
    return cost, all > 0 and queued or 0
  end
  return cost, math.min(queued, math.floor(cost * queued / math.max(1, all)))
end

-- pool_changes begins the lists of changes of a pool's indexes.
local function pool_changes(p)
  p.wait, p.unwait, p.unready, p.unreserve, p.ready_add, p.reserve_add = {}, {}, {}, {}, {}, {}
  p.awaited = {}
end

-- classes_load reads the classes of a pool, and how many flows each has in its index.
local function classes_load(p, text)
  p.classes, p.class_list, p.classes_text = {}, {}, text
  for name, start, rem, last, weight, counted, owed in string.gmatch(text, CLASS_IN_POOL) do
    last = last + 0 <= now + HELD_MOST and last + 0 or p.last -- one that is later is of damaged data
    class_new(p, name, start + 0, rem + 0, last, weight + 0, counted + 0, owed + 0)
  end
end

-- pool_load completes a pool that was read as a flow; a new one is made by pools_save.
local function pool_load(p, short)
  local v = { unpack(p.was, #p.was - #OWN, #p.was - 1) }
  numbers(v, #OWN)
  p.virtual, p.behind, p.weights, p.reserves, p.probe, p.watched, p.earlier_cost, p.changed_cost, p.ahead,
    p.owed, p.spared = unpack(v)
  local was = policy_read(p.was[#p.was - #OWN - 1])
  p.cost_before = was and pool_cost(was)
  pool_bounded(p)
  pool_limit_ahead(p, p.cost_before, p.ahead)
  p.fields, p.short, p.turn, p.seen = v, short, '', 0
  pool_changes(p)
  p.wait_index, p.ready_index, p.reserve_index
    = PREFIX .. 'wait:' .. short, PREFIX .. 'ready:' .. short, PREFIX .. 'reserve:' .. short
  if p.fresh then
    exists(PREFIX .. 'flows:' .. short)
  end
  index_size(p.wait_index, p.weights > 0)
  classes_load(p, p.was[#p.was] or '')
  p.candidates = index_size(p.ready_index, p.weights > 0) -- at least
  p.may_have_ready = p.candidates > 0
  -- The sum of the reserves is rounded: slow ones may add nothing to it.
  p.reserved = index_size(p.reserve_index, p.reserves > 0) > 0
  p.healed = {} -- what was wrong with the pool
  if p.behind < 0 or p.behind > now then
    p.healed[1] = format('behind %d', p.behind)
    p.behind = 0
  end
  local running = math.max(0, clock.last > 0 and math.min(p.running, clock.running) or p.running)
  if running ~= p.running then
    p.healed[#p.healed + 1] = format('running %d instead of at most %d', p.running, running)
    p.running = running
  end
  pools[short], pool_list[#pool_list + 1] = p, p
  return p
end

-- max_pool_hold is how long answers hold a pool at most, in µs, and whether every answer does.
local function max_pool_hold(p)
  local stored = p.policy.wait
  return stored == 0 and 60000000 or math.floor(stored / 2) * 1000, stored % 2 == 1
end

-- pool_changed appends to args the fields of a pool that have changed, each with its value.
local function pool_changed(args, p)
  changed_numbers(args, OWN, 1, #OWN, p, p.fields)
  local list = {}
  for i = 1, #p.class_list do
    local c = p.class_list[i]
    list[i] = c.name .. format(' %d %d %d %d %d %d', c.start, c.rem, c.last, c.weight, c.counted, c.owed)
  end
  local text = table.concat(list, ' ')
  if text ~= p.classes_text then
    args[#args + 1], args[#args + 2], p.classes_text = 'classes', text, text
  end
end

-- pool_due is the next instant at which a pool may give a stamp, nil when it cannot. Where no flow
-- is filed and no class owes, nothing of a flow counts: a version has erased flows that still did.
local function pool_due(p)
  if p.policy.paused or p.policy.concurrency > 0 and p.running >= p.policy.concurrency then
    return nil
  elseif p.crowded then -- flows wait that the plan has not read
    return now
  elseif p.candidates > 0 or p.may_have_ready and exists(p.ready_index) then
    return earliest(p)
  end
  for i = 1, #p.class_list do
    if p.class_list[i].owed > 0 then
      return earliest(p)
    end
  end
  local head = tonumber(redis.call('ZRANGE', p.wait_index, 0, 0, 'WITHSCORES')[2])
  for i = 1, #p.class_list do
    local c = p.class_list[i]
    local first = c.members > 0 and tonumber(redis.call('ZRANGE', c.index, 0, 0, 'WITHSCORES')[2])
    if first then
      head = math.min(head or FARTHEST, math.max(first, c.last))
    end
  end
  if not head then
    p.weights, p.reserves, p.owed = 0, 0, 0
  end
  return head and math.max(earliest(p), head)
end

-- stays_filed reports whether a flow with a job is where its policy wants it in its pool.
local function stays_filed(f)
  local t, policy = f.turn, f.policy
  local c = policy.class and f.pool.classes[policy.class]
  if policy.class and (f.line ~= policy.class or not c or c.weight ~= policy.class_weight) then
    return false
  end
  return t.filed and f.queued > 0 and not f.retuned and t.weight == policy.weight
    and t.limit == policy.reserve_limit and t.period == policy.reserve_period
end

-- class_leave takes a flow out of the index of its class.
local function class_leave(p, f)
  local c = p.classes[f.line]
  if c then
    c.unwait[#c.unwait + 1] = f.name
  end
  f.line = nil
end

-- pool_file files a flow in its pool under its next possible stamp, nil for none; one that owes,
-- as soon as it is ready. A candidate whose turn was corrected stays one if it may leave now: it
-- would lose what a refund gave it.
local function pool_file(f, due)
  local p, t, class = f.pool, f.turn, f.policy.class
  if f.owed > 0 then
    local ready = math.max(now, f.ready)
    due = math.min(due or ready, ready)
  end
  if due and f.due_before and (due == f.due_before or f.candidate and due <= now) then
    return
  end
  local candidate = p.ready_add[f.name] and t.filed and due and due <= p.last
  if candidate and t.weight == f.policy.weight and t.limit == f.policy.reserve_limit
    and t.period == f.policy.reserve_period then
    f.due_before = due -- it stays where the plan has filed it
    return
  end
  if t.filed then
    p.weights, p.reserves = p.weights - t.weight, p.reserves - reserve_a_second(t.limit, t.period)
    p.unready[#p.unready + 1] = f.name
    p.ready_add[f.name], p.reserve_add[f.name] = nil, nil
    if class and not f.line then
      p.unwait[#p.unwait + 1] = f.name
    end
  end
  t.filed, t.moved = due ~= nil, true
  turn_obey(p, t, f.policy)
  if f.line and not (due and f.line == class) then
    class_leave(p, f)
  end
  if due and class then
    local c = class_of(p, class, f.policy.class_weight)
    f.line = class
    c.wait[#c.wait + 1] = format('%d', due)
    c.wait[#c.wait + 1] = f.name
  elseif due then
    p.weights, p.reserves = p.weights + t.weight, p.reserves + reserve_a_second(t.limit, t.period)
    p.wait[#p.wait + 1] = format('%d', due)
    p.wait[#p.wait + 1] = f.name
  else
    p.unwait[#p.unwait + 1] = f.name
  end
  f.due_before = due
end

-- The counts of a pool that are sums over its flows, whether these are filed or not.
local SUMS = { 'depth', 'bytes', 'running', 'queued', 'cost', 'owed' }

local moving = {} -- flows of this call that have left a pool for another one or for none

-- pool_left moves the counts of a flow from the pool of its turn, nil for none, to the one of its
-- policy, if there is one. They come back with pools_save if the flow is not filed in this call.
local function pool_left(f, p, turn)
  local l = { pool = p, turn = p and turn_read(turn, p), to = f.pool }
  for i = 1, #SUMS do
    local name = SUMS[i]
    l[name] = f[name] or 0
    if p then
      l[name .. '_before'] = math.min(p[name], l[name])
      p[name] = p[name] - l[name .. '_before']
    end
    if l.to then
      l.to[name] = l.to[name] + l[name]
    end
  end
  f.left, moving[#moving + 1] = l, l
end

-- pool_leave takes a flow out of the indexes of the pool that it has left.
local function pool_leave(f)
  local p, t = f.left.pool, f.left.turn
  f.left.filed, f.left = true, nil
  if not p then
    return
  end
  if t.filed then
    p.weights = math.max(0, p.weights - t.weight)
    p.reserves = math.max(0, p.reserves - reserve_a_second(t.limit, t.period))
  end
  p.unready[#p.unready + 1], p.unwait[#p.unwait + 1] = f.name, f.name
  p.ready_add[f.name], p.reserve_add[f.name] = nil, nil
  if f.line then
    class_leave(p, f)
  end
end

-- moves_undone moves the counts back of flows that are not filed in this call.
local function moves_undone()
  for i = 1, #moving do
    local l = moving[i]
    for n = 1, l.filed and 0 or #SUMS do
      local name = SUMS[n]
      if l.pool then
        l.pool[name] = l.pool[name] + l[name .. '_before']
      end
      if l.to then
        l.to[name] = l.to[name] - l[name]
      end
    end
  end
  moving = {}
end

-- pool_rebase keeps the virtual times of a pool small.
local function pool_rebase(p)
  local by, ready = p.virtual, p.ready_index
  local starts, again = redis.call('ZRANGE', ready, 0, -1, 'WITHSCORES'), {}
  for i = 1, #starts, 2 do
    again[i], again[i + 1] = format('%d', math.max(0, starts[i + 1] - by)), starts[i]
  end
  in_parts('ZADD', ready, again, 1)
  for i = 1, #p.class_list do
    p.class_list[i].start = math.max(0, p.class_list[i].start - by)
  end
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

-- save_indexes writes the changes of a pool's indexes.
local function save_indexes(p)
  local ready, reserve = scored(p.ready_add), scored(p.reserve_add)
  p.candidates, p.reserved = p.candidates - #p.unready, p.reserved or reserve[1] ~= nil
  p.may_have_ready = p.may_have_ready or ready[1] ~= nil
  in_parts('ZREM', p.ready_index, p.unready, 1)
  in_parts('ZREM', p.reserve_index, p.reserved and p.unready or {}, 1)
  in_parts('ZREM', p.reserve_index, p.unreserve, 1)
  in_parts('ZREM', p.wait_index, p.unwait, 1)
  in_parts('ZADD', p.wait_index, p.wait, 1)
  in_parts('ZADD', p.ready_index, ready, 1)
  in_parts('ZADD', p.reserve_index, reserve, 1)
  for i = 1, #p.awaited do
    redis.call('HSET', unpack(p.awaited[i]))
  end
  pool_changes(p)
end

-- save_classes writes the changes of the indexes of classes, and forgets a class that has no flow
-- there, is not ahead, and owes nothing.
local function save_classes(p)
  for i = #p.class_list, 1, -1 do
    local c = p.class_list[i]
    if c.wait[1] or c.unwait[1] then
      in_parts('ZREM', c.index, c.unwait, 1)
      in_parts('ZADD', c.index, c.wait, 1)
      c.wait, c.unwait, c.members = {}, {}, redis.call('ZCARD', c.index)
    end
    local counts = c.members > 0 and c.weight or 0
    p.weights, c.counted = p.weights + counts - c.counted, counts
    if counts == 0 and c.owed == 0 and c.start <= p.virtual then
      table.remove(p.class_list, i)
      p.classes[c.name] = nil
    end
  end
end

-- pools_save writes the pools that were read, and files each under its next possible stamp.
local function pools_save(horizon, file_due, flow_save)
  moves_undone()
  for i = 1, #pool_list do
    local p = pool_list[i]
    pool_bounded(p)
    if p.fresh then
      redis.call('SADD', PREFIX .. 'flows:' .. p.short, p.name)
      p.fresh = false
    end
    save_indexes(p)
    save_classes(p)
    if p.virtual >= REBASE_AT then
      pool_rebase(p)
    end
    local due = pool_due(p)
    flow_save(p)
    file_due(p.name, due, horizon)
  end
end
