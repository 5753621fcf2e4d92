-- admission: whether a flow has capacity left, and when it has again. The arithmetic is that of
-- shaper.Admit, step for step.

--! needs clock bucket flow pool

local ADMITTED, REPLAYED, FULL, UNREACHABLE, REUSED = 1, 2, 3, 4, 5
local DRAINING, FULL_OF_BYTES, STORE_FULL, OVER_SHARE, CLASS_FULL = 6, 7, 8, 9, 16

local TOO_COSTLY, TOO_COSTLY_IN_POOL, DENIED, TYPE_DENIED = 14, 15, 17, 18

local LATER_MOST = 1000 -- shaper.LaterMost

-- forbids returns the outcome DENIED or TYPE_DENIED if the policy forbids new jobs of the type,
-- else nil. Without the type it stops where that counts, before the first write.
local function forbids(p, kind)
  if p.denied then
    return DENIED
  elseif p.types and not kind then
    error('TYPES are needed')
  end
  return p.types and not p.types[kind] and TYPE_DENIED or nil
end

-- exceeds returns the outcome FULL or FULL_OF_BYTES if size jobs with these bytes exceed that
-- capacity, else nil. The second value is the number of departures until they fit, nil if they
-- never do. It is exact for jobs; for bytes it assumes that they are spread evenly over the jobs.
local function exceeds(f, size, bytes)
  local p = f.policy
  if size > p.capacity then
    return FULL, nil
  elseif p.capacity_bytes > 0 and bytes > p.capacity_bytes then
    return FULL_OF_BYTES, nil
  elseif f.depth + size > p.capacity then
    return FULL, f.depth + size - p.capacity
  elseif p.capacity_bytes > 0 and f.bytes + bytes > p.capacity_bytes then
    return FULL_OF_BYTES, math.ceil((f.bytes + bytes - p.capacity_bytes) * f.depth / f.bytes)
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
  local slot = slot_after(f, f.queued + n - 1, f.sampled or f)
  return slot > 0 and math.max(at, slot) or 0
end

-- retry_after is the time until the given number of jobs have left, at least 1 ms; 0 when unknown.
-- The second value reports whether it is exact, and no estimate: nothing but the flow's own paces
-- decides, and no cost of a job is unknown to it.
local function retry_after(f, departures)
  if not departures or paused(f) then
    return 0, false
  end
  local at = 0
  if departures <= f.queued then
    local cost = f.is_pool and math.min(f.cost, f.queued * pool_cost(f.policy)) or f.cost
    at = start_of(f, departures - 1, math.floor((departures - 1) * cost / f.queued))
  else
    at = start_of_later(f, departures - f.queued)
  end
  if at == 0 then
    return 0, false
  end
  local exact = departures <= f.queued and not (f.pool or f.is_pool or slots_of(f))
    and (departures == 1 or f.cost == f.queued and f.share == 0)
  return math.max(1000, math.ceil((at - now) / 1000) * 1000), exact
end

-- asked_text tells with a refusal as full the jobs and bytes that were asked for, and whether they
-- fit: 0 never, 1 at the exact time that is told, 2 then by an estimate, or at an unknown time.
local function asked_text(size, bytes, departures, exact)
  return format('%d %d ', size, bytes) .. (not departures and '0' or exact and '1' or '2')
end
