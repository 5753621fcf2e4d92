-- turn: the turns of flows and classes in their pool. The arithmetic is that of shaper.Pool, step
-- for step.
--
-- The field turn of a flow holds its turn in the pool: '+' if it is in an index or '-' if not, the
-- name of the pool, the virtual start and its remainder, the weight, and the reserve, if there is
-- one, as limit:period:instant:remainder:credit:1, with 0 at the end if it did not take the last
-- departure. The weight is 0 if the flow was last filed as one of a class: the class has the turn.

--! needs clock bucket
--! pools

local VIRTUAL_UNIT, LEAD_MOST = 1000, 2000000000 -- of shaper.Pool
local CREDIT_MOST = 630720000000000 -- µs; shaper.chargeSpan
local TURN = '^([+-])(%S+) (%d+) (%d+) (%d+) ?(%S*)$'
local RESERVE = '^(%d+):(%d+):(%-?%d+):(%d+):(%d+):([01])$'

-- turn_read decodes a turn in a pool. One that was never written, or is of another pool, starts
-- anew, at the virtual time.
local function turn_read(text, p)
  local t = { filed = false, start = p.virtual, rem = 0, weight = 1,
    limit = 0, period = 0, tat = 0, tat_rem = 0, credit = 0, reserved = false }
  local filed, name, start, rem, weight, reserve = string.match(text or '', TURN)
  if name ~= p.short then
    t.moved = true -- and must be written
    return t
  end
  t.filed, t.start, t.rem, t.weight = filed == '+', start + 0, rem + 0, weight + 0
  if reserve ~= '' then
    local limit, period, tat, tat_rem, credit, reserved = string.match(reserve, RESERVE)
    t.limit, t.period, t.tat, t.tat_rem = limit + 0, period + 0, tat + 0, tat_rem + 0
    t.credit, t.reserved = credit + 0, reserved == '1'
  end
  return t
end

local function turn_text(t, p)
  local text = format(t.filed and '+%s %d %d %d' or '-%s %d %d %d', p.short, t.start, t.rem, t.weight)
  if t.limit == 0 then
    return text
  end
  local reserved = t.reserved and 1 or 0
  return text .. format(' %d:%d:%d:%d:%d:%d', t.limit, t.period, t.tat, t.tat_rem, t.credit, reserved)
end

-- reserve_a_second is a reserve in millionths of a cost a second.
local function reserve_a_second(limit, period)
  return limit > 0 and math.floor(limit * 1000000000000 / period) or 0
end

-- reserve_interval is T of a reserve in whole µs, rounded up.
local function reserve_interval(t)
  return math.floor((t.period + t.limit - 1) / t.limit)
end

-- turn_obey lays weight and reserve of the policy over a turn: shaper.Pool.Obey.
local function turn_obey(p, t, policy)
  local limit, period = policy.reserve_limit, policy.reserve_period
  t.weight, t.rem = policy.weight, math.max(0, math.min(t.rem, policy.weight - 1))
  if limit == t.limit and period == t.period then
    return
  end
  local due, ahead = now - p.behind, nil
  if limit > 0 and t.limit > 0 then
    ahead = math.floor(math.min(CREDIT_MOST, (t.tat - due) * ((period * t.limit) / (t.period * limit))))
  end
  t.limit, t.period, t.tat, t.tat_rem, t.credit = limit, period, 0, 0, 0
  t.reserved = t.reserved and limit > 0
  if limit > 0 then
    local behind = -reserve_interval(t)
    t.tat = due + math.max(behind, ahead or behind)
  end
end

-- reserves_advance is shaper.Pool.Advance: it sets the clock of the reserves for a stamp. head is
-- the turn of the candidate whose reserve is due first, of those that were candidates for the stamp
-- before.
local function reserves_advance(p, head, at)
  p.behind = math.max(p.behind, at - head.tat - reserve_interval(head))
end

-- turn_ahead reports whether a virtual start is of before a rebase, reserve_far_ahead whether a
-- reserve is further ahead than charges can take it: of damaged data.
local function turn_ahead(p, t)
  return t.start > p.virtual + LEAD_MOST
end

local function reserve_far_ahead(p, t, at)
  return t.limit > 0 and t.tat > at - p.behind + CREDIT_MOST + reserve_interval(t)
end

-- turn_enter is shaper.Pool.Enter: the turn of a flow that becomes a candidate for a stamp.
-- turn_enter_start is the part of it that a class has, too.
local function turn_enter_start(p, t)
  if t.start < p.virtual or turn_ahead(p, t) then
    t.start, t.rem = p.virtual, 0
  end
end

local function turn_enter(p, t, at)
  t.moved = true
  turn_enter_start(p, t)
  if t.limit == 0 then
    return
  end
  local behind = at - p.behind - reserve_interval(t)
  if t.tat < behind or reserve_far_ahead(p, t, at) then
    t.tat, t.tat_rem, t.credit = behind, 0, 0
  end
end

-- part_of is the part of the pool's rate that a flow gets while the flows that wait now keep
-- waiting: of shaper.Shared.
local function part_of(p, f, all)
  local t, policy, rate = f.turn, f.policy, FARTHEST
  local weights, reserves, weight, members = p.weights, p.reserves, policy.weight, 1
  local reserve = reserve_a_second(policy.reserve_limit, policy.reserve_period)
  if policy.class then
    local c = p.classes[policy.class]
    weight, members = policy.class_weight, (c and c.members or 0) + (t.filed and f.line == policy.class and 0 or 1)
    weights = weights + (c and c.counted > 0 and 0 or weight)
  elseif not t.filed then
    weights, reserves = weights + weight, reserves + reserve
  end
  for i = 1, #p.cells do
    local c = p.cells[i]
    local of_cell = c.limit * 1000000000000 / c.period
    if c.by_jobs then
      of_cell, p.counts_jobs = of_cell * (all / math.max(1, p.queued)), true
    end
    rate = math.min(rate, of_cell)
  end
  if reserves >= rate then
    return reserve > 0 and reserve / reserves or 0
  end
  return (reserve + (rate - reserves) * weight / math.max(weights, weight)) / rate / math.max(1, members)
end

-- cost_before is the cost that the pool gives away before a job of a flow that has the given cost
-- waiting before it there, while the same flows wait: a part of shaper.Shared.Before. All that
-- waits in the pool costs all, and a job most. What the flow and its class owe comes first.
local function cost_before(p, f, ahead, all, most, owing)
  if all + p.owed == 0 then
    return 0
  end
  local part = not p.counts_jobs and f.part or part_of(p, f, all)
  all, ahead = all + p.owed, ahead + owing
  f.part = part -- the flows that wait change at the end of the call
  if part * all <= ahead then
    return all
  end
  local half = math.min(f.cost, f.queued * most) / math.max(1, f.queued) / 2
  return math.max(0, math.min(all, math.floor((ahead + half) / part - half)))
end

-- reserve_pay moves a reserve by the intervals of one cost less those of another: shaper.Cell.pay.
local function reserve_pay(t, cost, less, due)
  local from, credit = t.tat, t.credit
  local cell = { limit = t.limit, period = t.period, burst = 1, tat = from, rem = t.tat_rem }
  cell_move(cell, charged(cell, 1, cost) - charged(cell, 1, less))
  local least = math.min(due, from)
  if cell.tat < least then
    credit = math.min(credit + least - cell.tat, CREDIT_MOST)
    cell.tat = least
  end
  local used = math.min(credit, math.max(0, cell.tat - math.max(from, due)))
  t.tat, t.tat_rem = math.min(cell.tat - used, math.max(from, due + CREDIT_MOST)), cell.rem
  t.credit = credit - used
end

-- turn_serve is the part of shaper.Pool.Serve after the bucket's: the next turn of the flow whose
-- job departs at the slot.
local function turn_serve(p, t, reserved, slot, cost)
  t.reserved, t.moved = reserved, true
  if reserved then
    return reserve_pay(t, cost, 0, slot - p.behind)
  end
  p.virtual = math.max(p.virtual, t.start)
  local sum = t.rem + cost * VIRTUAL_UNIT
  t.start, t.rem = t.start + math.floor(sum / t.weight), sum % t.weight
end

-- turn_correct_weight is the part of shaper.Pool.CorrectTag that is about weights.
local function turn_correct_weight(p, t, more, idle)
  local sum = t.rem + more * VIRTUAL_UNIT
  local by = math.floor(sum / t.weight)
  local start = math.max(math.min(t.start, idle and p.virtual or 0),
    math.min(t.start + by, math.max(t.start, p.virtual + LEAD_MOST)))
  t.rem = start == t.start + by and sum - by * t.weight or 0
  t.start = start
end

-- index_size is the number of flows in an index of a pool. It stops the script, before the first
-- write, if the index has a wrong type, or is on another node while flows must be in it.
local function index_size(index, must)
  local size = redis.call('ZCARD', index)
  if size == 0 and must then
    exists(index)
  end
  return size
end

-- class_new adds a class to those of a pool, which are sorted by name. Its fields start, rem and
-- weight are those of a turn.
local function class_new(p, name, start, rem, last, weight, counted, owed)
  local c = {
    name = name, start = start, rem = rem, last = last, weight = weight, counted = counted, owed = owed,
    index = p.wait_index .. '/' .. name, wait = {}, unwait = {},
  }
  c.members = index_size(c.index, counted > 0)
  local place = #p.class_list + 1
  while place > 1 and p.class_list[place - 1].name > name do
    place = place - 1
  end
  table.insert(p.class_list, place, c)
  p.classes[name] = c
  return c
end

-- class_of returns a class of a pool, which has this weight from now on. A new one starts at the
-- virtual time.
local function class_of(p, name, weight)
  local c = p.classes[name] or class_new(p, name, p.virtual, 0, 0, weight, 0, 0)
  c.weight, c.rem = weight, math.min(c.rem, weight - 1)
  return c
end

-- turn_current returns the turn of a flow, or of its class, nil if it has none. The indexes may be
-- newer than a candidate's turn.
local function turn_current(f)
  local p, t = f.pool, f.turn
  if t.weight == 0 then
    local class = f.policy.class
    return class and class_of(p, class, f.policy.class_weight)
  end
  if t.filed and f.candidate == nil then
    local start = redis.call('ZSCORE', p.ready_index, f.name)
    local tat = t.limit > 0 and redis.call('ZSCORE', p.reserve_index, f.name)
    f.candidate = start and true or false
    if start and start + 0 ~= t.start then
      t.start, t.rem = start + 0, 0
    end
    if tat and tat + 0 ~= t.tat then
      t.tat, t.tat_rem = tat + 0, 0
    end
  end
  return t
end

-- turn_correct is shaper.Pool.CorrectTag.
local function turn_correct(f, cost, actual, idle)
  local p, t = f.pool, turn_current(f)
  if not t then
    return
  elseif t ~= f.turn then
    return turn_correct_weight(p, t, actual - cost, t.counted == 0)
  end
  t.moved = true
  if t.reserved then
    local credit = t.credit
    reserve_pay(t, actual, cost, now - p.behind)
    t.credit = idle and math.min(t.credit, credit) or t.credit
  else
    turn_correct_weight(p, t, actual - cost, idle)
  end
  if f.candidate then
    p.ready_add[f.name], p.reserve_add[f.name] = t.start, t.limit > 0 and t.tat or nil
  end
end
