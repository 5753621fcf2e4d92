-- bucket: the pacing of a flow. The arithmetic is that of shaper.Bucket, step for step.

--! needs clock

local SLACK = 10000 -- µs; shaper.Slack
-- Millionths of the rate; the last one is µs after a hold for each of them.
local SHARE_ALL, SHARE_LEAST, SHARE_REGAIN = 1000000, 62500, 20
local SPACED_MOST = 31622400000000 -- µs; shaper.MaxPeriod
local PROBE_EVERY = 5000000 -- µs between two probes of a pool that is held; shaper.probeEvery
local PUT_OFF_MOST = 1000000 -- µs; shaper.PutOffMost

local function floor_div(a, b)
  local r = math.fmod(a, b) + 0 -- + 0 because fmod of a negative multiple is -0, which prints as no number
  if r < 0 then
    r = r + b
  end
  return (a - r) / b, r
end

local EXACT = 4503599627370496 -- 2^52, below which the operator of Lua divides without a rounding

-- cell_move_far is cell_move where the product is not exact: it moves by the whole µs of an
-- interval at once, and by the rest in steps.
local function cell_move_far(c, n)
  local whole, part = floor_div(c.period, c.limit)
  local step = part > 0 and math.floor((EXACT - c.limit) / part) or FARTHEST
  local sign, left = n < 0 and -1 or 1, math.abs(n)
  c.tat = c.tat + n * whole
  while left > 0 do
    local now_by = math.min(left, step)
    local q, r = floor_div(c.rem + sign * now_by * part, c.limit)
    c.tat, c.rem, left = c.tat + q, r, left - now_by
  end
end

-- cell_move shifts a TAT by n intervals.
local function cell_move(c, n)
  local sum, limit = c.rem + n * c.period, c.limit
  if sum < 0 or sum >= EXACT then
    return cell_move_far(c, n)
  end
  local r = sum % limit
  c.tat, c.rem = c.tat + (sum - r) / limit, r
end

-- In µs, µs and intervals, as in shaper.Pace.mostCharged.
local CHARGE_SPAN, MAX_HORIZON, LEAST_CHARGE = 630720000000000, 6307200000000000, 100

-- most_charged is the greatest cost that a pace charges in full.
local function most_charged(p)
  local span = math.min(CHARGE_SPAN, MAX_HORIZON - p.burst * p.period / p.limit)
  return math.max(LEAST_CHARGE, math.floor(span / p.period * p.limit))
end

-- charged is the number of intervals that a pace charges for jobs with this cost together.
local function charged(c, jobs, cost)
  if c.by_jobs then
    cost = jobs
  end
  return cost <= LEAST_CHARGE and cost or math.min(cost, most_charged(c))
end

-- correct_cell moves a TAT by n intervals; see shaper.Cell.
local function correct_cell(c, n, least, most)
  local before, credit = c.tat, c.credit or 0
  cell_move(c, n)
  least = math.min(least, before)
  if c.tat < least then
    credit = math.min(credit + least - c.tat, math.max(credit, most))
    c.tat = least
  end
  local used = math.min(credit, math.max(0, c.tat - before))
  c.tat = math.min(c.tat - used, math.max(before, least + CHARGE_SPAN))
  c.credit = credit > used and credit - used or nil
end

local function cell_earliest(c)
  if c.burst == 1 then
    return c.tat -- for 0 ≤ rem < limit
  end
  return c.tat + floor_div(c.rem - (c.burst - 1) * c.period, c.limit)
end

-- share is how much of the rate is in force, in millionths: less than all of it for a while after
-- an upstream asked for a pause.
local function share(f, at)
  if f.share == 0 then
    return SHARE_ALL
  end
  return math.min(SHARE_ALL, f.share + math.max(0, math.floor((at - f.held) / SHARE_REGAIN)))
end

-- hold keeps the flow from leaving anything until then. The first of several holds halves its share
-- of the rate, unless the hold says nothing of the rate: shaper.Bucket.Hold and Suspend.
local function hold(f, till, suspends)
  if f.held <= now then
    local part = share(f, now)
    if not suspends then
      f.share = math.max(SHARE_LEAST, math.floor(part / 2))
    else
      f.share = part < SHARE_ALL and part or 0
    end
  end
  f.held = math.max(f.held, till)
end

-- grid is max(L, every e, spaced): the instant at which the paces let the next job leave.
local function grid(f)
  local e, cells = f.last, f.cells
  if f.spaced > e then
    e = f.spaced
  end
  for i = 1, #cells do
    local of_cell = cell_earliest(cells[i])
    if of_cell > e then
      e = of_cell
    end
  end
  return e
end

-- stopped is the instant until which a hold keeps everything from leaving: shaper.Bucket.stopped.
local function stopped(f)
  local probe = f.probe
  if probe and probe > 0 and probe < f.held then
    return probe
  end
  return f.held
end

-- earliest is E = max(L, ready, held until, every e, spaced).
local function earliest(f)
  return math.max(grid(f), f.ready, f.probe and stopped(f) or f.held)
end

-- stamp_of returns the stamp of a job that is eligible since the given instant. from is the
-- earliest stamp that can still be kept. A flow that its paces hold back stays on their grid while
-- that is at most slack before from; otherwise the missed slots are gone. A job that only had to
-- become ready starts a new grid.
local function stamp_of(f, eligible, from)
  local on_grid, ready = grid(f), math.max(f.ready, f.probe and stopped(f) or f.held, eligible)
  if ready >= on_grid then
    return math.max(ready, from)
  end
  if on_grid < from - SLACK then
    return from
  end
  return on_grid
end

-- depart_on_credit charges a cell that has credit; see shaper.Cell.
local function depart_on_credit(c, stamp, jobs, cost)
  if stamp > c.tat then
    c.credit = math.max(0, c.credit - (stamp - c.tat))
    c.tat, c.rem = stamp, 0
  end
  local before = c.tat
  cell_move(c, charged(c, jobs, cost))
  local used = math.min(c.credit, math.floor((c.tat - before) / 2))
  c.tat, c.credit = c.tat - used, c.credit > used and c.credit - used or nil
end

-- depart charges the paces for jobs that leave together at stamp. Without a job it charges only
-- those by cost.
local function depart(f, stamp, jobs, cost)
  f.moved = true
  for i = 1, #f.cells do
    local c = f.cells[i]
    if c.credit then
      depart_on_credit(c, stamp, jobs, cost)
    else
      if stamp > c.tat then
        c.tat, c.rem = stamp, 0
      end
      cell_move(c, charged(c, jobs, cost))
    end
  end
  if jobs == 0 then
    return
  end
  f.last = stamp
  if f.probe and f.probe > 0 and stamp < f.held then
    f.probe = stamp + PROBE_EVERY
  end
  local s = f.share == 0 and SHARE_ALL or share(f, stamp)
  if s == SHARE_ALL then
    f.share, f.spaced = 0, 0
  else
    local c, p = f.cells[1], f.pool and f.pool.cells[1]
    if p and p.period / p.limit > c.period / c.limit then
      c = p -- shaper.Bucket.DepartIn
    end
    f.spaced = stamp + math.min(SPACED_MOST, math.ceil(cost * c.period / c.limit * SHARE_ALL / s))
  end
end

-- rewind takes back the last stamps given, which no worker has seen: first is the first of them,
-- jobs their number, cost the sum of all costs.
local function rewind(f, first, jobs, cost)
  f.moved = true
  for i = 1, #f.cells do
    local c = f.cells[i]
    if c.credit then
      correct_cell(c, -charged(c, jobs, cost), first, CHARGE_SPAN)
    else
      cell_move(c, -charged(c, jobs, cost))
    end
  end
  f.last, f.spaced = first, math.min(f.spaced, first)
end

-- refund gives back the slot of a job that never departed, if no later stamp was given.
local function refund(f, stamp, cost)
  if stamp == f.last then
    rewind(f, stamp, 1, cost)
  end
end

local LEAST_APART, MOST_CREDIT = 16, 4 -- of shaper.Bucket.Correct

-- correct replaces the cost that a departure was charged for by the actual one:
-- shaper.Bucket.Correct.
local function correct(f, cost, actual)
  for i = 1, #f.cells do
    local c = f.cells[i]
    local before = charged(c, 1, cost)
    local n = charged(c, 1, actual) - before
    if n ~= 0 then
      local takes = before * c.period / c.limit
      correct_cell(c, n, math.max(now, f.last + math.floor(takes / LEAST_APART)),
        math.floor(math.min(CHARGE_SPAN, takes * MOST_CREDIT)))
      f.moved = true
    end
  end
end

local function same_pace(c, p)
  return c and c.limit == p.limit and c.period == p.period and c.burst == p.burst and c.by_jobs == p.by_jobs
end

-- cell_for is a cell of a pace. It takes over the wait since the last stamp from a cell of another
-- pace, scaled by T'/T; without one it lets nothing leave for an interval.
local function cell_for(p, c, last)
  local cell = { limit = p.limit, period = p.period, burst = p.burst, by_jobs = p.by_jobs, tat = last, rem = 0 }
  if last == 0 then
    return cell
  elseif not c then
    cell_move(cell, 1)
    return cell
  end
  local before = (c.tat - last) + (c.rem - (c.burst - 1) * c.period) / c.limit
  local ratio = (p.period * c.limit) / (c.period * p.limit)
  local after = math.ceil(math.min(before * ratio, most_charged(p) * p.period / p.limit))
  cell_move(cell, p.burst - 1)
  if after + cell.tat < last then
    cell.tat, cell.rem = last, 0
  else
    cell.tat = cell.tat + after
  end
  return cell
end

-- retune lays the policy's paces over the bucket; true when something changed. A cell of the same
-- pace stays as it is. The others follow the order of the paces.
local function retune(f)
  local paces, cells, same_cells, left = f.policy.paces, f.cells, {}, {}
  local same = #paces == #cells
  for i = 1, #cells do
    local stays = false
    for n = 1, #paces do
      if not stays and not same_cells[n] and same_pace(cells[i], paces[n]) then
        same_cells[n], stays = cells[i], true
        same = same and n == i
      end
    end
    if not stays then
      left[#left + 1], same = cells[i], false
    end
  end
  if same then
    return false
  end
  local retuned = {}
  for i = 1, #paces do
    retuned[i] = same_cells[i] or cell_for(paces[i], table.remove(left, 1), f.last)
  end
  f.cells, f.spaced, f.moved = retuned, 0, true
  if f.fresh then
    return false
  end
  f.ready = math.max(now, f.full)
  return true
end

-- start_after estimates when a job leaves that has the given number of jobs, and their cost,
-- waiting before it; 0 when unknown. f.first caches the instant at which the first one leaves.
local function start_after(f, jobs, cost)
  local first = f.first or math.max(earliest(f), now)
  if f.probe and f.probe > 0 and jobs > 0 then
    first = math.max(first, math.min(f.held, f.probe + jobs * PROBE_EVERY))
  end
  local start = first
  for i = 1, #f.cells do
    local c = f.cells[i]
    local base, rem, credit, ahead = c.tat, c.rem, c.credit, c.by_jobs and jobs or cost
    if first > base then
      -- First the credit: gopher-lua assigns to base before it computes what follows it.
      credit = credit and math.max(0, credit - (first - base))
      base, rem = first, 0
    end
    local wait = math.floor((rem + (ahead - c.burst + 1) * c.period) / c.limit)
    if credit then
      wait = wait - math.min(credit, math.floor(ahead * c.period / c.limit / 2))
    end
    local of_cell = base + wait
    if of_cell > FARTHEST then
      return 0
    end
    if of_cell > start then
      start = of_cell
    end
  end
  return start
end

-- put_off delays a flow that may take no slot of the worker now; see shaper.Bucket.PutOff.
local function put_off(f, horizon)
  local rest = math.max(math.floor(horizon / 8), math.min(PUT_OFF_MOST, math.floor((now - f.last) / 8)))
  f.ready = math.max(f.ready, now + rest)
end
