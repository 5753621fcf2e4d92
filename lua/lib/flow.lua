-- flow: reads and writes flows, their counts, and KEYS[2], the index of flows by due instant.

-- paused reports whether the flow is paused or full of dead letters.
local function paused(f)
  return f.policy.paused or f.full > now
end

-- take_place adds a job to the depth, leave_place removes it.
local function take_place(f, j)
  f.depth, f.bytes = f.depth + 1, f.bytes + j.payload
  clock.depth, clock.bytes = clock.depth + 1, clock.bytes + j.payload
end

-- The bytes never become negative, and the last job takes those of lost records with it.
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

-- The fields of a flow: numbers that every call reads, cells, policy, and the tallies, which tick
-- does without most of the time.
local FLOW_FIELDS = {
  'last', 'ready', 'held', 'depth', 'queued', 'cost', 'running', 'departed', 'share', 'spaced', 'full',
  'bytes', 'cells', 'policy', 'seq', 'seen', 'admitted', 'rejected', 'succeeded', 'dead', 'live',
  'dead_bytes', 'answers', 'answers_before', 'answers_at',
  'keys', 'keys_before', 'keys_at',
}
local NUMBERS_END, CELLS, POLICY_AT, TALLIES_AT, TALLIES_END = 12, 13, 14, 15, 28

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
  f.tallied = true
end

-- flow_tallied reads the tallies of a flow, unless they were read.
local function flow_tallied(f)
  if not f.tallied then
    local v = redis.call('HMGET', f.key, unpack(FLOW_FIELDS, TALLIES_AT))
    for i = TALLIES_AT, TALLIES_END do
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
    absent(PREFIX .. 'lines')
    if not f.policy then
      error('DAMAGED policies')
    end
    return false
  end
  f.policy = policy
  return retune(f)
end

-- flow_of reads the fields of a flow up to the given one, under the policies in force. claimed is
-- the tier that the tenant's credential claims now; nil keeps the one claimed last.
local function flow_of(name, last, claimed, unseen)
  local key = PREFIX .. 'flow:' .. name
  local v = redis.call('HMGET', key, unpack(FLOW_FIELDS, 1, last))
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
    retuned = false,
  }
  local tier = claimed or policy and policy.tier or ''
  if not policy or policy.revision ~= clock.revision or policy.tier ~= tier then
    f.retuned = flow_obey(f, tier, unseen)
  end
  return f
end

-- flow_load reads a whole flow; see flow_of.
local function flow_load(name, claimed, unseen)
  local f = flow_of(name, TALLIES_END, claimed, unseen)
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
  if #args > 0 then
    redis.call('HSET', f.key, unpack(args))
  end
end

-- later_head is the earliest eligible time among the scheduled and retrying jobs, nil when there is
-- none.
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

-- later_known is later_head before the first write. It stops the script if the index was deleted:
-- the flow must be mended first.
local function later_known(f)
  local at = later_head(f)
  if not at and f.depth > f.queued then
    error('DAMAGED flow ' .. f.name)
  end
  return at
end

-- flow_known stops the script if the flow was deleted although it has jobs.
local function flow_known(f)
  if f.fresh then
    absent(f.key) -- while its slot migrates, it may be on another node
    error('DAMAGED flow ' .. f.name)
  end
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

-- hinder stores why jobs of a flow cannot leave, apart from its policy: a cause as limited_by shows
-- it, and the instant until which it holds. A later cause replaces it.
local function hinder(f, cause, till)
  redis.call('HSET', f.key, 'hindered', format('%d:', till) .. cause)
end

local filed, unfiled = {}, {} -- flows to add to the index of due flows, and to remove from it

-- due_save files the flow under its next possible stamp; due_flush writes it. If horizon is given,
-- it wakes the owner when that is before the planned poll.
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

-- last_first reverses a list of scores and members in ascending order, for ZADD. Redis walks a
-- small index from its head to each new member, so the greatest score should come first. In batches
-- of a hundred this saves 10 % of a job's instructions in Redis.
local function last_first(list)
  local i, k = 1, #list - 1
  while i < k do
    list[i], list[i + 1], list[k], list[k + 1] = list[k], list[k + 1], list[i], list[i + 1]
    i, k = i + 2, k - 2
  end
  return list
end

-- due_flush writes what due_save has filed, of at most 1,000 flows.
local function due_flush()
  if #filed > 0 then
    redis.call('ZADD', KEYS[2], unpack(filed))
  end
  if #unfiled > 0 then
    redis.call('ZREM', KEYS[2], unpack(unfiled))
  end
end

-- enqueue adds a job to the counts of the queue; the caller adds its id under its sequence.
local function enqueue(f, cost)
  if f.queued == 0 then
    f.ready = max(f.ready, now)
  end
  f.queued = f.queued + 1
  f.cost = f.cost + cost
end

-- dequeue removes a job from the counts of the queue. The last one takes the cost of lost records
-- with it.
local function dequeue(f, cost)
  f.queued = f.queued - 1
  f.cost = f.queued > 0 and f.cost - cost or 0
end

-- place_of returns the position in the queue and the estimated start of a job by its rank.
local function place_of(f, rank)
  if paused(f) then
    return rank + 1, 0
  end
  return rank + 1, start_after(f, rank, floor(rank * f.cost / max(f.queued, 1)))
end

-- estimate returns the position and the estimated start of a job, 0 where it has none.
local function estimate(f, id, j)
  if j.state == 'q' then
    return place_of(f, redis.call('ZRANK', PREFIX .. 'queue:' .. f.name, id) or 0)
  elseif (j.state == 's' or j.state == 'r') and not paused(f) then
    local start = start_after(f, f.queued, f.cost)
    return 0, start ~= 0 and max(start, j.at) or 0
  end
  return 0, 0
end
