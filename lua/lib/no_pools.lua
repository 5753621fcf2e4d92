-- no_pools: a poll that leaves pools to tick_pools. The script of that name makes more functions,
-- which would cost every poll of a shard without pools.

local pools_needed = nil

local function plan_pool()
  pools_needed = true
  return false, 0
end
