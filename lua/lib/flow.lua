-- flow: a flow's policy, its bucket and its counts. The arithmetic is that of shaper.Bucket and shaper.Admit, step for step.

local SLACK = 10000 -- µs; shaper.Slack
local FARTHEST = 9007199254740991 -- 2^53 - 1
local FREE_LEASES = 20 -- shaper.FreeLeases
local LATER_MOST = 1000 -- shaper.LaterMost
local SEEN_EVERY = 60000000 -- µs between two notes of a tenant's activity
local SHARE_ALL, SHARE_LEAST, SHARE_REGAIN = 1000000, 62500, 20 -- millionths of the rate; µs after a hold for each of them
local SPACED_MOST = 31622400000000 -- µs; shaper.MaxPeriod

local max, min, ceil = math.max, math.min, math.ceil

-- A text of settings is a line of the general ones, like 'l10:1000000 b1 r c1000 k64 w0 p0', and further lines that begin with a heading:
-- '/ROUTE ' for those of a route, in the baseline also '@TIER ' and '@TIER/ROUTE ' for those of a tier. l is limit:period_us, b burst,
-- r further rates limit:period_us:burst,…, c capacity, y capacity in bytes, k concurrency, w max wait in ms, p paused, q paused (of a route), d draining,
-- t the tier (of a tenant).

local function general_of(text)
  return string.match(text, '^[^\n]*')
end

-- section_of is the line under a heading, empty when there is none.
local function section_of(text, heading)
  local _, last = string.find(text, '\n' .. heading .. ' ', 1, true)
  return last and string.match(text, '^[^\n]*', last + 1) or ''
end

-- tier_of is the tier said last, or else the claimed one.
local function tier_of(own, claimed)
  return string.match(' ' .. general_of(own), '.* t(%S*)') or claimed
end

local PLAIN = '^l(%d+):(%d+) b(%d+) r c(%d+) y(%d*) k(%d+) w(%d+) p(%d) d(%d)$' -- a text as Go writes the general line of a baseline

local function policy_with(paces, capacity, capacity_bytes, concurrency, wait, paused, draining)
  return {
    paces = paces, capacity = tonumber(capacity), capacity_bytes = tonumber(capacity_bytes) or 0, concurrency = tonumber(concurrency),
    wait = tonumber(wait), paused = paused, draining = draining == '1',
  }
end

local function pace(limit, period, burst)
  return { limit = tonumber(limit), period = tonumber(period), burst = tonumber(burst) }
end

local policies, policies_baseline, sectioned = {}, nil, false

-- policy_said is the policy of a route's flow: the baseline, the claimed tier, and what is said of the tenant itself, in the order of
-- shaper.Baseline.Resolve.
local function policy_said(baseline, own, claimed, route)
  local tier = '@' .. tier_of(own, claimed)
  local t = {}
  local texts = {
    general_of(baseline), section_of(baseline, tier), general_of(own),
    section_of(baseline, '/' .. route), section_of(baseline, tier .. '/' .. route), section_of(own, '/' .. route),
  }
  for name, value in string.gmatch(table.concat(texts, ' '), '(%l)(%S*)') do
    t[name] = value
  end
  local limit, period = string.match(t.l, '^(%d+):(%d+)$')
  local paces = { pace(limit, period, t.b) }
  for l, length, b in string.gmatch(t.r, '(%d+):(%d+):(%d+)') do
    paces[#paces + 1] = pace(l, length, b)
  end
  return policy_with(paces, t.c, t.y, t.k, t.w, t.p == '1' or t.q == '1', t.d)
end

-- policy_of is policy_said. Without a baseline, the one that the shard was last looked at with is meant. Flows may share the answer.
local function policy_of(baseline, own, claimed, route)
  if baseline == '' then
    baseline = clock.baseline
  end
  if baseline ~= policies_baseline then
    policies, policies_baseline, sectioned = {}, baseline, string.find(baseline, '\n', 1, true)
  end
  local key = own
  if sectioned or string.find(own, '\n', 1, true) then
    key = route .. ' ' .. claimed .. ' ' .. own
  end
  local p = policies[key]
  if not p then
    if key == '' then
      local l, period, b, c, y, k, w, paused, draining = string.match(baseline, PLAIN)
      p = l and policy_with({ pace(l, period, b) }, c, y, k, w, paused == '1', draining)
    end
    p = p or policy_said(baseline, own, claimed, route)
    policies[key] = p
  end
  return p
end

local function floor_div(a, b)
  local r = math.fmod(a, b) + 0 -- + 0 because fmod of a negative multiple is -0, which prints as no number
  if r < 0 then
    r = r + b
  end
  return (a - r) / b, r
end

local EXACT = 4503599627370496 -- 2^52, below which the operator of Lua divides without a rounding

-- cell_move shifts a TAT by n intervals.
local function cell_move(c, n)
  local sum, limit = c.rem + n * c.period, c.limit
  if sum >= 0 and sum < EXACT then
    local r = sum % limit
    c.tat, c.rem = c.tat + (sum - r) / limit, r
    return
  end
  local q, r = floor_div(sum, limit)
  c.tat, c.rem = c.tat + q, r
end

local function cell_earliest(c)
  if c.burst == 1 then
    return c.tat -- for 0 ≤ rem < limit
  end
  return c.tat + floor_div(c.rem - (c.burst - 1) * c.period, c.limit)
end

-- paused says whether nobody can tell when the next job leaves: by the policy, or because the flow has as many dead letters as are kept.
local function paused(f)
  return f.policy.paused or f.full > now
end

-- share is how much of the rate is in force, in millionths: less than all of it for a while after an upstream asked for peace.
local function share(f, at)
  if f.share == 0 then
    return SHARE_ALL
  end
  return min(SHARE_ALL, f.share + max(0, floor((at - f.held) / SHARE_REGAIN)))
end

-- hold keeps the flow from leaving anything until then. The first of several holds halves its share of the rate.
local function hold(f, till)
  if f.held <= now then
    f.share = max(SHARE_LEAST, floor(share(f, now) / 2))
  end
  f.held = max(f.held, till)
end

-- grid is max(L, every e, spaced): when the paces alone let the next job leave.
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

-- earliest is E = max(L, ready, held until, every e, spaced).
local function earliest(f)
  return max(grid(f), f.ready, f.held)
end

-- stamp_of is the stamp of a job eligible since then: on the grid while the look is at most slack late, else now, for missed slots are
-- gone; a job that only had to be ready starts a new grid.
local function stamp_of(f, eligible)
  local on_grid, ready = grid(f), max(f.ready, f.held, eligible)
  if ready >= on_grid then
    return max(ready, now)
  end
  if on_grid < now - SLACK then
    return now
  end
  return on_grid
end

local function depart(f, stamp, cost)
  f.moved = true
  for i = 1, #f.cells do
    local c = f.cells[i]
    if stamp > c.tat then
      c.tat, c.rem = stamp, 0
    end
    cell_move(c, cost)
  end
  f.last = stamp
  local s = f.share == 0 and SHARE_ALL or share(f, stamp)
  if s == SHARE_ALL then
    f.share, f.spaced = 0, 0
  else
    local c = f.cells[1]
    f.spaced = stamp + min(SPACED_MOST, ceil(cost * c.period / c.limit * SHARE_ALL / s))
  end
end

-- rewind takes back the last stamps given, which nobody has seen: the first of them, and the sum of the costs of all.
local function rewind(f, first, cost)
  f.moved = true
  for i = 1, #f.cells do
    cell_move(f.cells[i], -cost)
  end
  f.last, f.spaced = first, min(f.spaced, first)
end

-- refund gives back the slot of a job that never departed, if no later stamp was given.
local function refund(f, stamp, cost)
  if stamp == f.last then
    f.moved = true
    for i = 1, #f.cells do
      cell_move(f.cells[i], -cost)
    end
    f.spaced = min(f.spaced, stamp)
  end
end

local function same_pace(c, p)
  return c and c.limit == p.limit and c.period == p.period and c.burst == p.burst
end

-- cell_retuned is a cell of another pace: its wait since the last stamp scaled by T'/T.
local function cell_retuned(c, p, last)
  local before = (c.tat - last) + (c.rem - (c.burst - 1) * c.period) / c.limit
  local ratio = (p.period * c.limit) / (c.period * p.limit)
  local after = ceil(before * ratio)
  local cell = { limit = p.limit, period = p.period, burst = p.burst, tat = 0, rem = 0 }
  cell_move(cell, p.burst - 1)
  if after + cell.tat < 0 then
    cell.tat, cell.rem = last, 0
  else
    cell.tat = cell.tat + last + after
  end
  return cell
end

-- retune_anew is retune where something has changed.
local function retune_anew(f, paces, cells)
  local kept, left = {}, {}
  for i = 1, #cells do
    local stays = false
    for n = 1, #paces do
      if not stays and not kept[n] and same_pace(cells[i], paces[n]) then
        kept[n], stays = cells[i], true
      end
    end
    if not stays then
      left[#left + 1] = cells[i]
    end
  end
  local retuned, next_left = {}, 1
  for i = 1, #paces do
    local p = paces[i]
    local cell = kept[i]
    if not cell and f.last ~= 0 and left[next_left] then
      cell = cell_retuned(left[next_left], p, f.last)
      next_left = next_left + 1
    end
    if not cell then
      cell = { limit = p.limit, period = p.period, burst = p.burst, tat = f.last, rem = 0 }
      if f.last ~= 0 then
        cell_move(cell, 1)
      end
    end
    retuned[i] = cell
  end
  f.cells, f.spaced, f.moved = retuned, 0, true
  if f.fresh then
    return false
  end
  f.ready = max(now, f.full)
  return true
end

-- retune lays the policy's paces over the bucket; true when something changed.
local function retune(f)
  local paces, cells = f.policy.paces, f.cells
  local same = #paces == #cells
  for i = 1, #paces do
    same = same and same_pace(cells[i], paces[i])
  end
  return not same and retune_anew(f, paces, cells)
end

-- start_after estimates when a job leaves that has the given cost waiting before it; 0 when unknown. f.first may hold when the first one
-- leaves, where that is asked for often.
local function start_after(f, ahead)
  local first = f.first or max(earliest(f), now)
  local start = first
  for i = 1, #f.cells do
    local c = f.cells[i]
    local base, rem = c.tat, c.rem
    if first > base then
      base, rem = first, 0
    end
    local wait = floor((rem + (ahead - c.burst + 1) * c.period) / c.limit)
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

-- start_of_later estimates when the nth of the scheduled and retrying jobs leaves, after all that are queued now; 0 when that cannot
-- be told.
local function start_of_later(f, n)
  if n > LATER_MOST or start_after(f, f.cost) == 0 then
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
    g.cells[i] = { limit = c.limit, period = c.period, burst = c.burst, tat = c.tat, rem = c.rem }
  end
  if f.cost > 0 then
    depart(g, max(earliest(f), now), f.cost)
  end
  local at = 0
  for i = 1, n do
    at = max(earliest(g), tonumber(later[2 * i]), now)
    depart(g, at, 1)
  end
  return at
end

-- retry_after is the time until the job leaves whose departure is the last of so many; 0 when that cannot be told.
local function retry_after(f, departures)
  if paused(f) then
    return 0
  end
  local at = 0
  if departures <= f.queued then
    at = start_after(f, floor((departures - 1) * f.cost / f.queued))
  else
    at = start_of_later(f, departures - f.queued)
  end
  if at == 0 then
    return 0
  end
  return max(1000, ceil((at - now) / 1000) * 1000)
end

-- full says whether the flow has no room for size jobs of so many bytes: 'jobs' or 'bytes', nil if it has; then also after how many
-- departures it will have, nil if never. That is exact for jobs; bytes are taken as spread evenly over them.
local function full(f, size, bytes)
  local p = f.policy
  if f.depth + size > p.capacity then
    return 'jobs', size <= p.capacity and f.depth + size - p.capacity or nil
  end
  if p.capacity_bytes > 0 and f.bytes + bytes > p.capacity_bytes then
    return 'bytes', bytes <= p.capacity_bytes and ceil((f.bytes + bytes - p.capacity_bytes) * f.depth / f.bytes) or nil
  end
end

-- take_place counts in a job that holds a place, leave_place counts it out.
local function take_place(f, j)
  f.depth, f.bytes = f.depth + 1, f.bytes + j.payload
  clock.depth, clock.bytes = clock.depth + 1, clock.bytes + j.payload
end

-- Jobs that were admitted before their bytes were counted are counted out without harm, and the last one takes with it what was counted in
-- for a record that is lost.
local function leave_place(f, j)
  local payload = f.depth > 1 and j.payload or f.bytes
  local bytes, in_all = f.bytes - payload, clock.bytes - payload
  f.depth, f.bytes = f.depth - 1, bytes > 0 and bytes or 0
  clock.depth, clock.bytes = clock.depth - 1, in_all > 0 and in_all or 0
end

local function tenant_of(name)
  return string.match(name, '^([^/]+)/')
end

local function route_of(name)
  return string.match(name, '/(.*)$')
end

local FLOW_NUMBERS = { 'last', 'ready', 'held', 'depth', 'queued', 'cost', 'running', 'departed', 'share', 'spaced', 'full', 'bytes' }
local FLOW_TALLIES = { 'seq', 'seen', 'admitted', 'rejected', 'succeeded', 'dead' } -- which tick does without, most of the time

local CELL = '(%d+):(%d+):(%d+):(-?%d+):(%d+)'

local function cell_of(limit, period, burst, tat, rem)
  return { limit = limit + 0, period = period + 0, burst = burst + 0, tat = tat + 0, rem = rem + 0 }
end

local function cells_of(text)
  if not text then
    return {}
  end
  if not string.find(text, ',', 1, true) then
    return { cell_of(string.match(text, CELL)) }
  end
  local cells = {}
  for limit, period, burst, tat, rem in string.gmatch(text, CELL) do
    cells[#cells + 1] = cell_of(limit, period, burst, tat, rem)
  end
  return cells
end

local function missed(key, unseen)
  if unseen then
    unseen[#unseen + 1] = key
  else
    absent(key)
  end
end

-- flow_tally takes the tallies of a flow, which it reads unless they are given.
local function flow_tally(f, tallies)
  local v = tallies or redis.call('HMGET', f.key, 'seq', 'seen', 'admitted', 'rejected', 'succeeded', 'dead')
  numbers(v, 6)
  f.seq, f.seen, f.admitted, f.rejected, f.succeeded, f.dead, f.tallies = v[1], v[2], v[3], v[4], v[5], v[6], v
end

-- flow_of is a flow with its policy, by the values of its fields: the numbers, cells, tier. It is retuned when the policy has changed since
-- it was last touched. claimed is the tier that the tenant's credential claims now, nil when there is no credential: then the one claimed
-- last holds. unseen collects keys that were not there, for a caller who looks for many at once; without it they are looked for here.
local function flow_of(name, key, v, baseline, claimed, unseen)
  numbers(v, 12)
  local fresh, tier = not v[13], v[14] or ''
  if fresh then
    missed(key, unseen)
  end
  local policy = PREFIX .. 'policy:' .. tenant_of(name)
  local own = redis.call('HGET', policy, 'eff')
  if not own then
    missed(policy, unseen)
  end
  local f = {
    name = name, key = key, fresh = fresh, moved = fresh, -- moved: the cells are to be written
    last = v[1], ready = v[2], held = v[3], depth = v[4], queued = v[5], cost = v[6], running = v[7], departed = v[8], share = v[9],
    spaced = v[10], full = v[11], bytes = v[12], was = v, cells = cells_of(v[13]), tier = claimed or tier, tier_before = tier, retuned = false,
    policy = policy_of(baseline, own or '', claimed or tier, route_of(name)),
  }
  f.retuned = retune(f)
  return f
end

-- flow_brief reads a flow without its tallies; see flow_of.
local function flow_brief(name, baseline, unseen)
  local key = PREFIX .. 'flow:' .. name
  local v = redis.call('HMGET', key, 'last', 'ready', 'held', 'depth', 'queued', 'cost', 'running', 'departed', 'share', 'spaced', 'full', 'bytes',
    'cells', 'tier')
  return flow_of(name, key, v, baseline, nil, unseen)
end

-- flow_load reads a flow; see flow_of.
local function flow_load(name, baseline, claimed, unseen)
  local key = PREFIX .. 'flow:' .. name
  local v = redis.call('HMGET', key, 'last', 'ready', 'held', 'depth', 'queued', 'cost', 'running', 'departed', 'share', 'spaced', 'full', 'bytes',
    'cells', 'tier', 'seq', 'seen', 'admitted', 'rejected', 'succeeded', 'dead')
  local f = flow_of(name, key, v, baseline, claimed, unseen)
  flow_tally(f, { v[15], v[16], v[17], v[18], v[19], v[20] })
  return f
end

-- flow_save writes what has changed.
local function flow_save(f)
  local args = changed_numbers({}, FLOW_NUMBERS, f, f.was)
  if f.tallies then
    changed_numbers(args, FLOW_TALLIES, f, f.tallies)
  end
  if f.moved then
    local cells = {}
    for i = 1, #f.cells do
      local c = f.cells[i]
      cells[i] = format('%d:%d:%d:%d:%d', c.limit, c.period, c.burst, c.tat, c.rem)
    end
    args[#args + 1], args[#args + 2] = 'cells', table.concat(cells, ',')
    f.moved = false
  end
  if f.tier ~= f.tier_before then
    args[#args + 1], args[#args + 2] = 'tier', f.tier
    f.tier_before = f.tier
  end
  if #args > 0 then
    redis.call('HSET', f.key, unpack(args))
  end
end

-- later_head is the earliest eligible time among the scheduled and retrying jobs, nil when there is none.
local function later_head(f)
  if f.depth <= f.queued then
    return nil
  end
  local head = redis.call('ZRANGE', PREFIX .. 'later:' .. f.name, 0, 0, 'WITHSCORES')
  if not head[2] then
    absent(PREFIX .. 'later:' .. f.name)
  end
  return tonumber(head[2])
end

-- oldest_of is when the job at the head of a flow's queue became eligible. Where that cannot be told it is 0, and the key that is missing.
local function oldest_of(name)
  local queue = PREFIX .. 'queue:' .. name
  local id = redis.call('ZRANGE', queue, 0, 0)[1]
  if not id then
    return 0, queue
  end
  local job = PREFIX .. 'job:' .. id
  local at = redis.call('GETRANGE', job, '21', '27')
  if #at < 7 then
    return 0, job
  end
  return n56(at, 1)
end

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

local filed, unfiled = {}, {} -- what due_flush writes

-- due_save files the flow under its next possible stamp, and wakes the owner when horizon is given and that is early. What is filed is
-- written by due_flush.
local function due_save(f, later, horizon)
  local due = flow_due(f, later)
  if due then
    filed[#filed + 1] = format('%d', due)
    filed[#filed + 1] = f.name
    if horizon then
      wake_for(due, horizon)
    end
  else
    unfiled[#unfiled + 1] = f.name
  end
end

-- due_flush writes the index of what is due, KEYS[2]: of at most 1,000 flows.
local function due_flush()
  if #filed > 0 then
    redis.call('ZADD', KEYS[2], unpack(filed))
  end
  if #unfiled > 0 then
    redis.call('ZREM', KEYS[2], unpack(unfiled))
  end
end

-- enqueue counts a job into the queue; the caller adds its id under its sequence.
local function enqueue(f, cost)
  if f.queued == 0 then
    f.ready = max(f.ready, now)
  end
  f.queued = f.queued + 1
  f.cost = f.cost + cost
end

-- dequeue counts a job out of the queue. The last one leaves nothing behind, whatever was counted in for a record that is lost.
local function dequeue(f, cost)
  f.queued = f.queued - 1
  f.cost = f.queued > 0 and f.cost - cost or 0
end

-- dead_left lets a flow go on that had stopped for its dead letters, when one of them has left.
local function dead_left(f, dead_capacity)
  if f.full ~= 0 and redis.call('ZCARD', PREFIX .. 'dead:' .. f.name) < dead_capacity then
    f.full, f.ready = 0, now
  end
end

-- place_of is the position in the queue and the estimated start of a job by its rank.
local function place_of(f, rank)
  if paused(f) then
    return rank + 1, 0
  end
  return rank + 1, start_after(f, floor(rank * f.cost / max(f.queued, 1)))
end
