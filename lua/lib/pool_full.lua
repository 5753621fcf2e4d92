-- pool_full: whether a pool has capacity left for a job of a flow: of shaper.Admit.

--! needs admission
--! pools

-- The outcomes where it is the pool that is full, or the part of it that the flow may hold.
local IN_POOL = { [FULL] = 10, [FULL_OF_BYTES] = 11 }
local OF_PART = { [FULL] = 12, [FULL_OF_BYTES] = 13 }

-- part_left returns how much of a pool's capacity a flow may hold that holds some of it: at most
-- three times what it leaves, and one more. So a greedy flow never keeps the others out.
local function part_left(capacity, taken, holds)
  return holds + math.floor((3 * (capacity - taken) - holds + 3) / 4)
end

-- full_in_pool is exceeds for the pool of a flow. size and bytes are those of the flow's jobs, all
-- and all_bytes those of all jobs of the call in the pool. The third value is what is full: depth,
-- bytes and, in its policy, their bounds. The fourth and the fifth are the jobs and bytes that it
-- has no capacity for. Where a departure of any flow frees a place, the part grows by three
-- quarters of it.
local function full_in_pool(f, size, bytes, all, all_bytes)
  local p = f.pool
  local most = p.policy
  local outcome, departures = exceeds(p, all, all_bytes)
  if not outcome and f.depth + size <= part_left(most.capacity, p.depth, f.depth)
    and (most.capacity_bytes == 0 or f.bytes + bytes <= part_left(most.capacity_bytes, p.bytes, f.bytes)) then
    return nil
  end
  local alone, alone_bytes = part_left(most.capacity, 0, 0), part_left(most.capacity_bytes, 0, 0)
  if not outcome or departures then
    local never = size > alone and FULL or most.capacity_bytes > 0 and bytes > alone_bytes and FULL_OF_BYTES
    if never then -- not even into the empty pool
      return IN_POOL[never], nil, { depth = p.depth, bytes = p.bytes,
        policy = { capacity = alone, capacity_bytes = most.capacity_bytes > 0 and alone_bytes or 0 } }, size, bytes
    end
  end
  if outcome then
    return IN_POOL[outcome], departures, p, all, all_bytes
  end
  local jobs, stored = part_left(most.capacity, p.depth, f.depth), part_left(most.capacity_bytes, p.bytes, f.bytes)
  local over = FULL
  if f.depth + size > jobs then
    departures = math.ceil((f.depth + 4 * size - 3 * (most.capacity - p.depth) - 3) / 3)
  else
    over = FULL_OF_BYTES
    departures = math.ceil((f.bytes + 4 * bytes - 3 * (most.capacity_bytes - p.bytes) - 3) / 3 * p.depth / p.bytes)
  end
  return OF_PART[over], math.min(p.depth, departures), { depth = f.depth, bytes = f.bytes,
    policy = { capacity = jobs, capacity_bytes = most.capacity_bytes > 0 and stored or 0 } }, size, bytes
end
