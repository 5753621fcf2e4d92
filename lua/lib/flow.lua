-- flow: reads and writes flows and pools, and their counts.

--! needs record clock pools policy bucket turn pool stored

local COSTS_READ = 8 -- jobs before one whose costs are read for its estimate

-- paused reports whether the flow or its pool is paused, or the flow full of dead letters.
local function paused(f)
  return f.policy.paused or f.full > now or f.pool ~= nil and f.pool.policy.paused
end

-- take_place adds a job to the depth, leave_place removes it.
local function take_place(f, j)
  f.depth, f.bytes = f.depth + 1, f.bytes + j.payload
  clock.depth, clock.bytes = clock.depth + 1, clock.bytes + j.payload
  if f.pool then
    f.pool.depth, f.pool.bytes = f.pool.depth + 1, f.pool.bytes + j.payload
  end
end

-- The bytes never become negative, and the last job takes those of lost records with it.
local function leave_place(f, j)
  local payload = f.depth > 1 and j.payload or f.bytes
  local bytes, in_all = f.bytes - payload, clock.bytes - payload
  f.depth, f.bytes = f.depth - 1, bytes > 0 and bytes or 0
  clock.depth, clock.bytes = clock.depth - 1, in_all > 0 and in_all or 0
  local p = f.pool
  if p then
    p.depth, p.bytes = p.depth - 1, math.max(0, p.bytes - payload)
  end
end

-- run counts n more leased jobs of the flow.
local function run(f, n)
  f.running, clock.running = f.running + n, clock.running + n
  if f.pool then
    f.pool.running = f.pool.running + n
  end
end

-- count_departed counts n more departures of the flow.
local function count_departed(f, n)
  f.departed, clock.departed = f.departed + n, clock.departed + n
  if f.pool then
    f.pool.departed = f.pool.departed + n
  end
end

local function tenant_of(name)
  return string.match(name, '^([^/]+)/')
end

local function route_of(name)
  return string.match(name, '^[^/]*/(.*)$')
end

-- The fields of a flow: numbers that every call reads, cells, policy, and what tick does without
-- most of the time: the tallies, and the class that its bytes are counted in.
local FLOW_FIELDS = {
  'last', 'ready', 'held', 'depth', 'queued', 'cost', 'running', 'departed', 'share', 'spaced', 'full', 'bytes', 'cells', 'policy',
  'seq', 'seen', 'admitted', 'rejected', 'succeeded', 'dead', 'live', 'dead_bytes', 'answers', 'answers_before', 'answers_at',
  'keys', 'keys_before', 'keys_at', 'class',
}
local NUMBERS_END, CELLS, POLICY_AT, TALLIES_AT, TALLIES_END, CLASS_AT = 12, 13, 14, 15, 28, 29

-- cells_of reads the state of each pace, as TAT:remainder, with :credit behind it if there is any,
-- joined by commas.
local function cells_of(text, paces)
  local cells = {}
  for tat, rem, credit in string.gmatch(text or '', '(-?%d+):(%d+):?(%d*)') do
    local p = paces[#cells + 1]
    if p then
      cells[#cells + 1] = {
        limit = p.limit, period = p.period, burst = p.burst, by_jobs = p.by_jobs, tat = tat + 0, rem = rem + 0,
        credit = credit ~= '' and credit + 0 or nil,
      }
    end
  end
  return cells
end

-- flow_tally takes the tallies of a flow from the values v of its fields.
local function flow_tally(f, v)
  for i = TALLIES_AT, TALLIES_END do
    local n = v[i]
    n = n and n ~= '0' and n + 0 or 0
    v[i], f[FLOW_FIELDS[i]] = n, n
  end
  f.class = v[CLASS_AT] or nil
  f.tallied = true
end

-- flow_tallied reads the tallies of a flow, unless they were read.
local function flow_tallied(f)
  if not f.tallied then
    local v = redis.call('HMGET', f.key, unpack(FLOW_FIELDS, TALLIES_AT))
    for i = TALLIES_AT, CLASS_AT do
      f.was[i] = v[i - TALLIES_AT + 1]
    end
    flow_tally(f, f.was)
  end
end

-- flow_obey applies the policies in force to a flow, as of the given tier; true when its paces
-- changed. If the shard has lost its policies, the flow keeps its own.
local function flow_obey(f, tier, unseen)
  local policy = policy_of(tenant_of(f.name), tier, route_of(f.name), unseen)
  if not policy then
    exists(PREFIX .. 'lines')
    if not f.policy then
      error('DAMAGED policies')
    end
    return false
  end
  f.policy, f.due_before, f.obeyed = policy, nil, true
  return retune(f)
end

-- flow_read reads the fields of a flow up to the given one, under the policies in force, without
-- its pool. claimed is the tier that the tenant's credential claims now; nil keeps the one claimed
-- last. With clock.anew a flow obeys those policies even if it did before.
local function flow_read(name, last, claimed, unseen)
  local key = PREFIX .. 'flow:' .. name
  local fields = POOLS and pool_fields(names_pool(name), FLOW_FIELDS, last) or FLOW_FIELDS
  local v = redis.call('HMGET', key, unpack(fields, 1, POOLS and #fields or last))
  local no_depth, no_running = not v[4], not v[7]
  numbers(v, NUMBERS_END)
  local fresh, policy = not v[CELLS], policy_read(v[POLICY_AT])
  if fresh then
    missed(key, unseen)
  end
  local f = {
    name = name, key = key, fresh = fresh, moved = fresh, -- moved: the cells have changed
    last = v[1], ready = v[2], held = v[3], depth = v[4], queued = v[5], cost = v[6], running = v[7],
    departed = v[8], share = v[9], spaced = v[10], full = v[11], bytes = v[12], was = v,
    cells = cells_of(v[CELLS], policy and policy.paces or {}), policy = policy,
    retuned = false, is_pool = names_pool(name), line = policy and policy.class,
    no_depth = no_depth, no_running = no_running,
  }
  local tier = claimed or policy and policy.tier or ''
  if clock.anew or not policy or policy.revision ~= clock.revision or policy.tier ~= tier then
    f.retuned = flow_obey(f, tier, unseen)
  end
  return f
end

-- pool_of returns a pool.
local function pool_of(short, unseen)
  return pools[short] or pool_load(flow_read(short .. '/', POLICY_AT, '', unseen), short)
end

-- flow_leaves notes that a flow has left the pool of its turn, nil if it was in none.
local function flow_leaves(f, turn, short, unseen)
  f.no_turn = not f.pool
  local known = short and exists(PREFIX .. 'flow:' .. short .. '/')
  local p = known and pool_of(short, unseen) or nil
  if p or f.pool then
    pool_left(f, p, turn)
  end
end

-- pool_read reads what a flow owes to a pool, and whether it is filed in its class, and returns its
-- turn. A script without pools has not read the fields.
local function pool_read(f, last)
  local v = POOLS and { f.was[last + 1], f.was[last + 2] } or redis.call('HMGET', f.key, 'turn', 'owed')
  local turn = v[1] or ''
  f.owed = (v[2] or 0) + 0
  f.owed_before = f.owed
  f.line = f.line and string.find(turn, '^%+%S+ %d+ %d+ 0$') and f.line -- the class that it is filed in
  return turn
end

-- flow_of is flow_read with the pool of the flow. Where the flow is filed does not change while
-- flow_due gives due_before. A flow whose turn is of another pool than its policy leaves that pool
-- when due_save files it.
local function flow_of(name, last, claimed, unseen)
  if names_pool(name) then
    return pool_of(sub(name, 1, -2), unseen)
  end
  local f = flow_read(name, last, claimed, unseen)
  local pool = f.policy.pool
  if not pool and (f.fresh or not f.obeyed) then
    return f
  end
  local turn = pool_read(f, last)
  if pool then
    f.pool = pool_of(pool, unseen)
    f.turn = turn_read(turn, f.pool)
    local class = f.policy.class
    if class and not f.pool.classes[class] then
      exists(f.pool.wait_index .. '/' .. class) -- before the first write
    end
    f.due_before = stays_filed(f) and earliest(f)
  end
  if not f.fresh and (not pool or sub(turn, 2, #pool + 2) ~= pool .. ' ') then
    local short = string.match(turn, '^[+-](%S+)')
    if short ~= pool then
      flow_leaves(f, turn, short, unseen)
    end
  end
  return f
end

-- flow_load reads a whole flow; see flow_of.
local function flow_load(name, claimed, unseen)
  local f = flow_of(name, CLASS_AT, claimed, unseen)
  if f.is_pool then
    flow_tallied(f)
    return f
  end
  flow_tally(f, f.was)
  if f.live > 0 and f.depth == 0 and f.running == 0 then
    stored_add(f, 'live', -f.live) -- of lost records
  end
  return f
end

-- flow_save writes what has changed.
local function flow_save(f)
  local args = changed_numbers({}, FLOW_FIELDS, 1, NUMBERS_END, f, f.was)
  if f.tallied then
    changed_numbers(args, FLOW_FIELDS, TALLIES_AT, TALLIES_END, f, f.was)
  end
  if f.moved then
    local cells = {}
    for i = 1, #f.cells do
      local c = f.cells[i]
      cells[i] = c.credit and format('%d:%d:%d', c.tat, c.rem, c.credit) or format('%d:%d', c.tat, c.rem)
    end
    args[#args + 1], args[#args + 2] = 'cells', table.concat(cells, ',')
    f.moved = false
  end
  if f.policy.text ~= f.was[POLICY_AT] then
    args[#args + 1], args[#args + 2] = 'policy', f.policy.text
    f.was[POLICY_AT] = f.policy.text
  end
  if f.pool and f.turn.moved then
    args[#args + 1], args[#args + 2] = 'turn', turn_text(f.turn, f.pool)
    f.turn.moved = false
  elseif f.no_turn then
    args[#args + 1], args[#args + 2] = 'turn', ''
    f.no_turn = false
  end
  if f.is_pool then
    pool_changed(args, f)
  elseif f.owed ~= f.owed_before then
    args[#args + 1], args[#args + 2], f.owed_before = 'owed', format('%d', f.owed), f.owed
  end
  if #args > 0 then
    redis.call('HSET', f.key, unpack(args))
  end
  if f.extra and f.extra ~= 0 then
    redis.call('HINCRBY', f.key, 'extra', format('%d', f.extra))
    f.extra = 0
  end
end

-- later_head is the earliest eligible time among the scheduled and retrying jobs, nil when there is
-- none.
local function later_head(f)
  if f.depth <= f.queued or f.is_pool then
    return nil
  end
  local head = redis.call('ZRANGE', PREFIX .. 'later:' .. f.name, 0, 0, 'WITHSCORES')
  if not head[2] then
    exists(PREFIX .. 'later:' .. f.name)
  end
  return tonumber(head[2])
end

-- later_known is later_head before the first write. It stops the script if the index was deleted:
-- the flow must be repaired first.
local function later_known(f)
  local at = later_head(f)
  if not at and f.depth > f.queued and not f.is_pool then
    error('DAMAGED flow ' .. f.name)
  end
  return at
end

-- uncounted reports whether counts of a flow are missing that its jobs have written: its first
-- admission writes the depth, and its first departure the number of running jobs. A flow whose
-- tallies were not read is due, so it has had jobs.
local function uncounted(f)
  return not f.is_pool and (f.no_depth and (f.admitted or 1) > 0 or f.no_running and f.departed > 0)
end

-- flow_known stops the script if the flow, or its counts, were deleted although it has jobs.
local function flow_known(f)
  if f.fresh or uncounted(f) then
    exists(f.key) -- while its slot migrates, it may be on another node
    error('DAMAGED flow ' .. f.name)
  end
end

-- count_queued counts one more queued job.
local function count_queued(f, cost)
  f.queued, f.cost = f.queued + 1, f.cost + cost
  if f.pool then
    f.pool.queued, f.pool.cost = f.pool.queued + 1, f.pool.cost + cost
  end
end

-- enqueue adds a job to the counts of the queue; the caller adds its id under its sequence.
local function enqueue(f, cost)
  if f.queued == 0 then
    f.ready = math.max(f.ready, now)
  end
  count_queued(f, cost)
end

-- dequeue removes a job from the counts of the queue. The last one takes the cost of lost records
-- with it.
local function dequeue(f, cost)
  f.queued = f.queued - 1
  f.cost = f.queued > 0 and f.cost - cost or 0
  local p = f.pool
  if p then
    p.queued = p.queued - 1
    p.cost = p.queued > 0 and math.max(0, p.cost - cost) or 0
  end
end

local SAMPLED = 8 -- recent jobs by whose deliveries an estimate goes; shaper.Sampled

-- slots_of returns how many deliveries at once keep the flow from leaving further jobs: all that
-- its concurrency allows, or those that it has while its upstream or its pool gives it no more. It
-- returns false where no delivery must end first.
local function slots_of(f)
  if f.slots == nil then
    local most = f.policy.concurrency
    f.slots = most > 0 and f.running >= most and most
    if not f.slots and not f.is_pool and f.queued > 0 and f.held <= now and grid(f) <= now then
      local till, cause = string.match(redis.call('HGET', f.key, 'hindered') or '', '^(%d+):(.*)$')
      f.slots = till and till + 0 > now and (cause == 'upstream' or cause == 'pool') and math.max(1, f.running)
        or false -- not nil: the next job of the call would read it again
    end
  end
  return f.slots
end

-- took_of returns how long the slowest of the last deliveries of the flow took, 0 when unknown.
local function took_of(f)
  if not f.took then
    local ids, slowest = redis.call('LRANGE', PREFIX .. 'done:' .. f.name, 0, SAMPLED - 1), 0
    for i = 1, #ids do
      local raw = redis.call('GETRANGE', PREFIX .. 'job:' .. ids[i], '0', UP_TO_PAYLOAD)
      local j = job_read(raw)
      if j and (j.state == 'S' or j.state == 'd') and j.stamp > 0 then
        slowest = math.max(slowest, j.at - j.stamp)
      end
    end
    f.took = slowest
  end
  return f.took
end

-- slot_after estimates when the flow, or the pool of the sampled flow, has a slot for a job that
-- has these jobs waiting before it; 0 when unknown. Nobody knows when a delivery ends: this one
-- takes as long as the slowest of the last ones.
local function slot_after(f, jobs, sampled)
  local slots = slots_of(f)
  if not slots then
    return now
  end
  local took = took_of(sampled)
  if took == 0 then
    return 0
  end
  local first = f.last + took > now and f.last + took or now + took
  local start = first + math.floor(jobs / slots) * took
  return start <= FARTHEST and start or 0
end

-- paced_start is start_of by the paces alone: no job leaves before it.
local function paced_start(f, jobs, ahead)
  local own, p = start_after(f, jobs, ahead), f.pool
  if not p or own == 0 then
    return own
  end
  local before, jobs_before = pool_before(p, f, ahead)
  local in_pool = start_after(p, jobs_before, before)
  return in_pool > 0 and math.max(own, in_pool) or 0
end

-- start_of estimates when a job leaves that has these jobs with this cost waiting before it in its
-- flow, 0 when unknown. In a pool, every flow that waits now keeps waiting.
local function start_of(f, jobs, ahead)
  local start, p = paced_start(f, jobs, ahead), f.pool
  if start == 0 or not (slots_of(f) or p and slots_of(p)) then
    return start
  end
  local slot = slot_after(f, jobs, f.sampled or f)
  if slot > 0 and p and slots_of(p) then
    local _, jobs_before = pool_before(p, f, ahead)
    local in_pool = slot_after(p, jobs_before, f)
    slot = in_pool > 0 and math.max(slot, in_pool) or 0
  end
  return slot > 0 and math.max(start, slot) or 0
end

-- costs_ahead is what the first jobs of the queue cost, as many as the rank: exactly those next to
-- leave, and the mean of the others for each further one.
local function costs_ahead(f, rank)
  local sum, known = 0, 0
  if f.cost ~= f.queued then -- not all cost 1
    known = math.min(rank, COSTS_READ)
    local ids = known > 0 and redis.call('ZRANGE', PREFIX .. 'queue:' .. f.name, '0', known - 1) or {}
    for i = 1, #ids do
      local cost = redis.call('GETRANGE', PREFIX .. 'job:' .. ids[i], COST_AT - 1, COST_END - 1)
      sum = sum + (#cost == 4 and n32(cost, 1) or 1)
    end
  end
  return sum + math.floor((rank - known) * math.max(f.cost - sum, 0) / math.max(f.queued - known, 1))
end

-- place_of returns the position in the queue and the estimated start of a job by its rank.
local function place_of(f, rank)
  if paused(f) then
    return rank + 1, 0
  end
  return rank + 1, start_of(f, rank, costs_ahead(f, rank))
end

-- estimate returns the position and the estimated start of a job, 0 where it has none.
local function estimate(f, id, j)
  if j.state == 'q' then
    return place_of(f, redis.call('ZRANK', PREFIX .. 'queue:' .. f.name, id) or 0)
  elseif (j.state == 's' or j.state == 'r') and not paused(f) then
    local start = start_of(f, f.queued, f.cost)
    return 0, start ~= 0 and math.max(start, j.at) or 0
  end
  return 0, 0
end
