-- pool: how flows share the rate of their pool. The arithmetic is that of shaper.Pool, step for
-- step.
--
-- A pool is stored as a flow named +NAME/, whose bucket gives the stamps and whose counts are the
-- sums of its flows. It is filed in due under the next instant at which it may give a stamp. Its
-- flows are not in due. A flow that has a job to give is in one of two indexes:
--   wait:+NAME      by the instant of its next possible stamp
--   ready:+NAME     by its virtual start: the candidates
-- and a candidate with a reserve is in reserve:+NAME, too, by the instant from which it is
-- reserved.
--
-- The field turn of a flow holds its turn in the pool: '+' if it is in an index or '-' if not, the
-- name of the pool, the virtual start and its remainder, the weight, and the reserve as
-- limit:period:instant:remainder, 0:0:0:0 without one. Fields of the pool:
--   virtual, behind     of shaper.Pool
--   weights, reserves   sums over the flows in the indexes; reserves in millionths of a cost a
--     second

local POOL = 43 -- '+', with which the name of a pool begins
local VIRTUAL_UNIT, LEAD_MOST, REBASE_AT = 1000, 2000000000, 4503599627370496 -- of shaper.Pool
local TURN = '^([+-])(%S+) (%d+) (%d+) (%d+) (%d+):(%d+):(%-?%d+):(%d+)$'
local TURN_TEXT = '%s%s %d %d %d %d:%d:%d:%d'
local POOL_FIELDS = { 'virtual', 'behind', 'weights', 'reserves' }

local function is_pool(name)
  return byte(name) == POOL
end

-- turn_read decodes a turn in a pool. One that was never written, or is of another pool, starts
-- anew.
local function turn_read(text, p)
  local filed, name, start, rem, weight, limit, period, tat, tat_rem = string.match(text or '', TURN)
  if name ~= p.short then
    return { filed = false, start = 0, rem = 0, weight = 1, limit = 0, period = 0, tat = 0, tat_rem = 0 }
  end
  return {
    filed = filed == '+', start = start + 0, rem = rem + 0, weight = weight + 0, limit = limit + 0, period = period + 0,
    tat = tat + 0, tat_rem = tat_rem + 0,
  }
end

local function turn_text(t, p)
  return format(TURN_TEXT, t.filed and '+' or '-', p.short, t.start, t.rem, t.weight, t.limit, t.period, t.tat, t.tat_rem)
end

-- reserve_a_second is a reserve in millionths of a cost a second.
local function reserve_a_second(limit, period)
  return limit > 0 and floor(limit * 1000000000000 / period) or 0
end

-- turn_obey lays weight and reserve of the policy over a turn: shaper.Tag.Obey.
local function turn_obey(t, policy)
  local limit, period = policy.reserve_limit, policy.reserve_period
  t.weight, t.rem = policy.weight, min(t.rem, policy.weight - 1)
  if limit ~= t.limit or period ~= t.period then
    t.limit, t.period, t.tat, t.tat_rem = limit, period, limit > 0 and t.tat or 0, 0
  end
end

-- interval is T of a reserve in whole µs, rounded up.
local function interval(t)
  return floor((t.period + t.limit - 1) / t.limit)
end

-- advance is shaper.Pool.Advance: it sets the clock of the reserves for a stamp. head is the turn
-- of the candidate whose reserve is due first, of those that were candidates for the stamp before.
local function advance(p, head, at)
  p.behind = max(p.behind, at - head.tat - interval(head))
end

-- enter is shaper.Pool.Enter: the turn of a flow that becomes a candidate for a stamp.
local function enter(p, t, at)
  if t.start < p.virtual or t.start > p.virtual + LEAD_MOST then
    t.start, t.rem = p.virtual, 0
  end
  if t.limit == 0 then
    return
  end
  local behind = at - p.behind - interval(t)
  if t.tat < behind then
    t.tat, t.tat_rem = behind, 0
  end
end

-- cost_before is the cost that the pool gives away before a job of a flow that has the given cost
-- waiting before it there, while the same flows wait: shaper.Shared.Before.
local function cost_before(p, f, ahead)
  local t, policy, rate = f.turn, f.policy, FARTHEST
  local weights, reserves = p.weights, p.reserves
  local reserve = reserve_a_second(policy.reserve_limit, policy.reserve_period)
  if not t.filed then
    weights, reserves = weights + policy.weight, reserves + reserve
  end
  for i = 1, #p.cells do
    rate = min(rate, p.cells[i].limit * 1000000000000 / p.cells[i].period)
  end
  local part
  if reserves >= rate then
    part = reserve > 0 and reserve / reserves or 0
  else
    part = (reserve + (rate - reserves) * policy.weight / max(weights, policy.weight)) / rate
  end
  local half = f.cost / max(1, f.queued) / 2
  if part * p.cost <= ahead then
    return p.cost
  end
  return max(0, min(p.cost, floor((ahead + half) / part - half)))
end

-- serve is the part of shaper.Pool.Serve after the bucket's: the next turn of the flow whose job
-- departs.
local function serve(p, t, reserved, cost)
  if not reserved then
    p.virtual = max(p.virtual, t.start)
    local sum = t.rem + cost * VIRTUAL_UNIT
    t.start, t.rem = t.start + floor(sum / t.weight), sum % t.weight
    return
  end
  local cell = { limit = t.limit, period = t.period, burst = 1, tat = t.tat, rem = t.tat_rem }
  cell_move(cell, charged(cell, 1, cost))
  t.tat, t.tat_rem = cell.tat, cell.rem
end
