-- repair: compare the counters of flows with what is stored, and repair them.
--
-- Guarantee: what it repairs follows from the keys that are there: a key of a wrong type is
-- deleted, an index entry without a record is removed, a record without an index entry is put
-- back, counts are set to what is found, and a flow that was lost begins a new grid one interval
-- from now, so that no repair lets a flow burst. Without ARGV 3 it writes nothing. A second call
-- finds what is left. It reads at most 500 records of an index of a flow; of a longer one the cost
-- and the bytes are estimated where the number of its jobs is wrong. The totals take a read of each
-- flow of the shard.
--
-- KEYS
--   1 clock   2 due   3 expires   4 leases   5 tenants   6 outbox
--   then per job to check: job
-- ARGV
--   1 instant in µs, or '' for the server's
--   2 horizon in µs
--   3 '1' to repair
--   4 '1' to check the totals
--   5 '1' to check the flows of the jobs, too
--   then per flow: name
-- Reply
--   now, then per finding: kind, name of the key or flow, what was found
-- Derived keys: flow queue later lines policy flows job dead done returned kept history tenants
--   unlock wait ready reserve class
-- Channels: wake

--! needs record clock pools stored bucket flow filing findings pool_findings class_findings

local RECORDS_MOST, LEASES_MOST = 500, 5000
local horizon, totals, with_flows = tonumber(ARGV[2]), ARGV[4] == '1', ARGV[5] == '1'

if not sound(KEYS[1], 'hash') then
  return reply
end
local text = redis.call('HMGET', KEYS[1], 'n', 'resumes')
local unreadable = text[1] and not string.match(text[1], CLOCK) or text[2] and not tonumber(text[2])
if unreadable then
  find('clock_lost', 'clock', 'cannot be read', 'HDEL', KEYS[1], 'n', 'resumes')
  if not repair then
    return reply
  end
end
clock_load(ARGV[1], true)
reply[1] = now
local due_sound = redis.call('TYPE', KEYS[2]).ok
if not all_sound(KEYS[2], 'zset', KEYS[3], 'zset', KEYS[4], 'zset', KEYS[5], 'zset', KEYS[6], 'zset',
  PREFIX .. 'lines', 'hash') then
  return reply
end
if due_sound ~= 'zset' and due_sound ~= 'none' then
  redis.call('HSET', KEYS[1], 'looked', '00') -- the next polls make every flow due
end

if not pools_sound() then
  return reply
end
local names, seen = {}, {}
local function add_flow(name)
  if not seen[name] and not names_pool(name) then
    names[#names + 1] = name
  end
  seen[name] = true
end
for a = 6, #ARGV do
  add_flow(ARGV[a])
end

-- A clock that was lost counts nothing: its totals are those of all flows.
local lost = clock.last == 0 and redis.call('EXISTS', KEYS[5]) == 1
if lost then
  if not unreadable then
    find('clock_lost', 'clock', 'missing')
  end
  clock.revision = redis.call('HGET', PREFIX .. 'lines', 'revision') or ''
end

-- index_of is the index that holds a job in its state, with its score there; nil for none.
local function index_of(j)
  if j.state == 'q' then
    return PREFIX .. 'queue:' .. j.flow, j.seq
  elseif j.state == 's' or j.state == 'r' then
    return PREFIX .. 'later:' .. j.flow, j.at
  elseif j.state == 'l' then
    return KEYS[4], now -- the next sweep takes it back
  end
end

local function job_of(id)
  local key = PREFIX .. 'job:' .. id
  local raw = redis.pcall('GETRANGE', key, '0', UP_TO_PAYLOAD)
  if type(raw) == 'string' and raw ~= '' then -- most are: TYPE would take as long again
    return job_read(raw)
  end
  return sound(key, 'string') and nil
end

-- Each of the jobs has to be in the index of its state.
for k = 7, #KEYS do
  local id = sub(KEYS[k], #PREFIX + 5)
  local j = job_of(id)
  if j then
    if with_flows then
      add_flow(j.flow)
    end
    local index, score = index_of(j)
    if index and sound(index, 'zset') and not redis.call('ZSCORE', index, id) then
      add_flow(j.flow)
      find('unindexed', 'job:' .. id, 'in state ' .. j.state .. ' and in no index', 'ZADD', index,
        format('%d', score), id)
    end
    if index and index ~= KEYS[4] and j.deadline > 0 and not redis.call('ZSCORE', KEYS[3], id) then
      find('no_deadline', 'job:' .. id, 'missing among those that expire', 'ZADD', KEYS[3],
        format('%d', j.deadline), id)
    end
  end
end

-- The number of leased jobs and their bytes, by flow; unknown if there are too many leases to read.
local running, leased_bytes = {}, {}
local leases = redis.call('ZRANGE', KEYS[4], '0', format('%d', LEASES_MOST))
local all_leases = #leases <= LEASES_MOST
for i = 1, all_leases and #leases or 0 do
  local j = job_of(leases[i])
  if j and j.state == 'l' then
    running[j.flow] = (running[j.flow] or 0) + 1
    leased_bytes[j.flow] = (leased_bytes[j.flow] or 0) + job_bytes(j)
  else
    find('no_record', 'leases', leases[i], 'ZREM', KEYS[4], leases[i])
  end
end

-- records_of sums up the jobs of an index of a flow: their number, cost and bytes, their highest
-- sequence, and whether all were read; otherwise cost and bytes are estimated. It removes entries
-- without a record.
local function records_of(index)
  local ids = redis.call('ZRANGE', index, '0', format('%d', RECORDS_MOST - 1))
  local sum = { count = redis.call('ZCARD', index), cost = 0, bytes = 0, stored = 0, seq = 0, read = 0 }
  sum.whole = sum.count <= RECORDS_MOST
  for i = 1, #ids do
    local j = job_of(ids[i])
    if j and index_of(j) == index then
      sum.cost, sum.bytes, sum.seq, sum.read = sum.cost + j.cost, sum.bytes + j.payload,
        math.max(sum.seq, j.seq), sum.read + 1
      sum.stored = sum.stored + job_bytes(j)
    else
      find('no_record', sub(index, #PREFIX + 1), ids[i], 'ZREM', index, ids[i])
      sum.count = sum.count - 1
      if repair then
        redis.call('ZREM', KEYS[3], ids[i])
      end
    end
  end
  if not sum.whole then
    local part = sum.count / math.max(1, sum.read)
    sum.cost, sum.bytes = math.floor(sum.cost * part), math.floor(sum.bytes * part)
  end
  return sum
end

-- dead_bytes_of sums up the dead letters of a flow. If Redis has expired some, which is no damage,
-- or the index is long, it returns the counted sum.
local function dead_bytes_of(name, counted)
  local dead = PREFIX .. 'dead:' .. name
  local ids = redis.call('ZRANGE', dead, '0', format('%d', RECORDS_MOST))
  if #ids > RECORDS_MOST then
    return counted
  end
  local sum, gone = 0, #ids == 0
  for i = 1, #ids do
    local j = job_of(ids[i])
    local dead_letter = j and is_dead_letter(j)
    gone = gone or not dead_letter
    sum = sum + (dead_letter and job_bytes(j) or 0)
  end
  return gone and counted or sum
end

-- set changes counts, given as names and values. It reports those that differed as a finding,
-- unless kind is false.
local function set(f, kind, name_of, ...)
  local found, differ = { ... }, {}
  for i = 1, #found, 2 do
    local name, value = found[i], found[i + 1]
    if f[name] ~= value then
      differ[#differ + 1] = format('%s %d instead of %d', name, f[name], value)
      f[name] = value
    end
  end
  if kind and differ[1] then
    find(kind, name_of, table.concat(differ, ', '))
  end
end

local function flow_sound(name)
  local tenant = tenant_of(name)
  if not tenant then
    find('no_flow', name, 'not the name of a flow')
    return false
  end
  return all_sound(PREFIX .. 'flow:' .. name, 'hash', PREFIX .. 'policy:' .. tenant, 'hash',
    PREFIX .. 'lines:' .. tenant, 'hash',
    PREFIX .. 'history:' .. tenant, 'list', PREFIX .. 'done:' .. name, 'list',
    PREFIX .. 'flows:' .. tenant, 'set',
    PREFIX .. 'queue:' .. name, 'zset', PREFIX .. 'later:' .. name, 'zset', PREFIX .. 'dead:' .. name, 'zset',
    PREFIX .. 'returned:' .. name, 'zset', PREFIX .. 'kept:' .. name, 'zset')
end

local recount, lapsed = lost, false

local function repair_flow(name)
  if not flow_sound(name) then
    return
  end
  local f = flow_load(name, nil, {})
  if repair and not f.fresh then
    lapsed_of(f, FARTHEST)
    lapsed = lapsed or f.dead_lapsed + f.kept_lapsed > 0
    lapsed_count(f)
    lapsed_trim(f, FARTHEST)
  end
  local queue, later = records_of(PREFIX .. 'queue:' .. name), records_of(PREFIX .. 'later:' .. name)
  local runs = all_leases and (running[name] or 0) or f.running
  local depth = queue.count + later.count
  if f.fresh then
    if depth + runs == 0 and not exists(PREFIX .. 'dead:' .. name) then
      if redis.call('SISMEMBER', PREFIX .. 'flows:' .. tenant_of(name), name) == 1 then
        find('flow_lost', 'flow:' .. name, 'missing, and nothing is left of it', 'SREM',
          PREFIX .. 'flows:' .. tenant_of(name), name)
        if repair then
          redis.call('ZREM', KEYS[2], name)
          unfile(name)
        end
      end
      return
    end
    find('flow_lost', 'flow:' .. name, 'missing')
    recount = true -- its part of the totals is unknown
    f.fresh, f.last, f.cells, f.seq = false, now, {}, math.max(queue.seq, later.seq, math.floor(tonumber(
      redis.call('ZREVRANGE', PREFIX .. 'queue:' .. name, '0', '0', 'WITHSCORES')[2]) or 0))
    retune(f)
  end
  local depth_before, bytes_before, running_before, stored_before = f.depth, f.bytes, f.running,
    f.live + f.dead_bytes
  local exact = queue.whole and later.whole
  local cost, bytes = queue.cost, queue.bytes + later.bytes
  if not exact then
    cost = queue.count == f.queued and f.cost or cost
    bytes = depth == f.depth and f.bytes or bytes
  end
  local missing = uncounted(f)
  local live = exact and all_leases and queue.stored + later.stored + (leased_bytes[name] or 0) or f.live
  set(f, 'counts', 'flow:' .. name, 'depth', depth, 'queued', queue.count, 'running', runs, 'cost', cost,
    'bytes', bytes, 'live', live,
    'dead_bytes', dead_bytes_of(name, f.dead_bytes))
  if missing then
    f.was[4], f.was[7], recount = false, false, true -- so that they are written; the totals had them
    if depth + runs == 0 then
      find('counts', 'flow:' .. name, 'depth or running are missing')
    end
  end
  local head = later.count > 0 and tonumber(redis.call('ZRANGE', PREFIX .. 'later:' .. name, '0', '0', 'WITHSCORES')[2]) or nil
  local is_filed = f.pool and filed_in(f) or not f.pool and redis.call('ZSCORE', KEYS[2], name)
  if not is_filed then
    f.due_before = nil
  end
  misfiled(f)
  if (flow_due(f, head) or f.pool and not f.left and f.owed > 0) and not is_filed then
    find('not_due', 'flow:' .. name, 'it has jobs that may leave, and no poll would find them')
  end
  -- The entry of any other tenant has its name, which the next admission writes.
  local plain = sub(name, 1, 1) ~= '~'
  if redis.call('SISMEMBER', PREFIX .. 'flows:' .. tenant_of(name), name) == 0
    or plain and not redis.call('ZSCORE', KEYS[5], tenant_of(name)) then
    find('unlisted', 'flow:' .. name,
      'missing among the flows of its tenant, or the tenant among those of the shard')
  end
  if repair then
    if not recount then
      clock.depth, clock.bytes = clock.depth + f.depth - depth_before, clock.bytes + f.bytes - bytes_before
      clock.running = clock.running + f.running - running_before
      clock.stored = math.max(0, clock.stored + f.live + f.dead_bytes - stored_before)
      class_add(f.class, f.live + f.dead_bytes - stored_before)
    end
    redis.call('SADD', PREFIX .. 'flows:' .. tenant_of(name), name)
    if plain then
      redis.call('ZADD', KEYS[5], 'NX', format('%d', now), tenant_of(name))
    else
      f.seen = 0
    end
    due_save(f, head, horizon)
    flow_save(f)
    due_flush(horizon)
    filed, unfiled = {}, {}
  end
end

for i = 1, #names do
  repair_flow(names[i])
end

-- The totals of the shard.
if recount and repair or totals then
  local depth, bytes, runs, stored, kept, of_classes, members = 0, 0, 0, 0, 0, {}, {}
  local entries = redis.call('ZRANGE', KEYS[5], '0', '-1')
  for i = 1, #entries do
    local flows_of = PREFIX .. 'flows:' .. string.match(entries[i], '^%S+')
    local of_tenant = sound(flows_of, 'set') and redis.call('SMEMBERS', flows_of) or {}
    for n = 1, #of_tenant do
      local key = PREFIX .. 'flow:' .. of_tenant[n]
      if sound(key, 'hash') then
        local v = redis.call('HMGET', key, 'depth', 'bytes', 'running', 'live', 'dead_bytes', 'queued', 'cost', 'turn', 'kept', 'class', 'owed')
        numbers(v, 7)
        if names_pool(of_tenant[n]) then
          v[1], v[2], v[3] = 0, 0, 0
        else
          pool_add(of_tenant[n], v)
        end
        local answers = tonumber(v[9]) or 0
        local of_flow = v[4] + v[5] + answers
        kept = kept + answers
        depth, bytes, runs, stored = depth + v[1], bytes + v[2], runs + v[3], stored + of_flow
        if v[10] then
          of_classes[v[10]] = (of_classes[v[10]] or 0) + of_flow
          members[v[10] .. ' ' .. tenant_of(of_tenant[n])] = true
        end
      end
    end
  end
  set(clock, not recount and 'totals', 'clock', 'depth', depth, 'bytes', bytes, 'running', runs, 'stored', stored)
  local counted = (redis.call('HGET', KEYS[1], 'kept') or 0) + (clock.kept or 0)
  if counted ~= kept then
    find('totals', 'clock', format('answers %d instead of %d', counted, kept))
    clock.kept = (clock.kept or 0) + kept - counted
  end
  classes_compare(set, of_classes, members)
  pools_compare(set)
  if lost and repair then
    redis.call('HSET', KEYS[1], 'revision', clock.revision, 'looked', '00')
  end
end
if repair and (filled > 1 or lapsed) then
  clock_save()
  publish('wake', '')
end
return reply
