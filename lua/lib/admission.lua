-- admission: whether a flow has capacity left, and when it has again. The arithmetic is that of
-- shaper.Admit, step for step.

local ADMITTED, REPLAYED, FULL, UNREACHABLE, REUSED = 1, 2, 3, 4, 5
local DRAINING, FULL_OF_BYTES, STORE_FULL, OVER_SHARE = 6, 7, 8, 9

local IN_POOL = { [FULL] = 10, [FULL_OF_BYTES] = 11 } -- the outcome where it is the pool that is full

local LATER_MOST = 1000 -- shaper.LaterMost

-- full returns the outcome FULL or FULL_OF_BYTES if size jobs with these bytes exceed that
-- capacity, else nil. The second value is the number of departures until they fit, nil if they
-- never do. It is exact for jobs; for bytes it assumes that they are spread evenly over the jobs.
local function full(f, size, bytes)
  local p = f.policy
  if f.depth + size > p.capacity then
    return FULL, size <= p.capacity and f.depth + size - p.capacity or nil
  end
  if p.capacity_bytes > 0 and f.bytes + bytes > p.capacity_bytes then
    return FULL_OF_BYTES, bytes <= p.capacity_bytes
      and math.ceil((f.bytes + bytes - p.capacity_bytes) * f.depth / f.bytes) or nil
  end
end

-- start_of_later estimates when the nth of the scheduled and retrying jobs leaves, after all that
-- are queued now; 0 when unknown.
local function start_of_later(f, n)
  if n > LATER_MOST or start_after(f, f.queued, f.cost) == 0 then
    return 0
  end
  local later = redis.call('ZRANGE', PREFIX .. 'later:' .. f.name, 0, n - 1, 'WITHSCORES')
  if #later < 2 * n then
    return 0
  end
  local g = { last = f.last, ready = f.ready, held = f.held, share = f.share, spaced = f.spaced, cells = {} }
  for i = 1, #f.cells do
    local c = f.cells[i]
    if f.cost * c.period > FARTHEST then
      return 0
    end
    g.cells[i] = {
      limit = c.limit, period = c.period, burst = c.burst, by_jobs = c.by_jobs, tat = c.tat, rem = c.rem, credit = c.credit,
    }
  end
  if f.cost > 0 then
    depart(g, math.max(earliest(f), now), f.queued, f.cost)
  end
  local at = 0
  for i = 1, n do
    at = math.max(earliest(g), tonumber(later[2 * i]), now)
    depart(g, at, 1, 1)
  end
  return at
end

-- retry_after is the time until the given number of jobs have left, at least 1 ms; 0 when unknown.
local function retry_after(f, departures)
  if paused(f) then
    return 0
  end
  local at = 0
  if departures <= f.queued then
    at = start_of(f, departures - 1, math.floor((departures - 1) * f.cost / f.queued))
  else
    at = start_of_later(f, departures - f.queued)
  end
  if at == 0 then
    return 0
  end
  return math.max(1000, math.ceil((at - now) / 1000) * 1000)
end
