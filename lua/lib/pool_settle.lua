-- pool_settle: what the end of a lease changes in the pool of its flow.

--! needs clock bucket turn pool filing trial answered
--! pools

-- correct_in_pool replaces the cost that the pool was charged for, and the turn of the flow. It
-- returns whether the actual cost exceeds what the pool is charged for.
local function correct_in_pool(f, j, cost)
  local p, idle = f.pool, j.stamp < f.ready
  local before, after = pool_charge_of(p, j.cost, j.stamp), pool_charge_of(p, cost, j.stamp)
  count_cost(f, after - before)
  if after > before then
    after = pool_exceed(f, before, after)
  else
    correct(p, before, after)
  end
  turn_correct(f, before, math.max(after, math.ceil(before / LEAST_APART)), idle) -- shaper.TurnCost
  return cost > pool_cost(p.policy)
end

-- refund_in_pool gives back the slot of a job that never departed, whose cost it was charged for
-- last.
local function refund_in_pool(f, j, cost)
  local p, charge = f.pool, pool_charge_of(f.pool, cost, j.stamp)
  refund(p, j.stamp, pool_charge_of(p, j.cost, j.stamp))
  turn_correct(f, charge, 0, j.stamp < f.ready)
  count_cost(f, 1 - charge)
end

-- refuse_pooled counts that the upstream refused a job of the flow, which departed at the stamp, as
-- too much.
local function refuse_pooled(f, stamp)
  if select(2, max_pool_hold(f.pool)) then
    refuse(f.pool)
  else
    refuse(f)
    refuse_in(f.pool, party_of(f), stamp)
  end
end

-- hold_pool takes into account that the upstream asked for a pause, for a job that departed at the
-- stamp. It returns whether that holds the flow.
local function hold_pool(f, stamp, delay, cause)
  local p, party = f.pool, party_of(f)
  if not select(2, max_pool_hold(p)) then
    refuse_in(p, party, stamp)
  end
  local alone, till = pause_asked(p, party, delay)
  if till > 0 then
    p.probe = alone and now or 0
    held_anew(p)
    hold_for(p, till, cause)
  end
  return alone
end
