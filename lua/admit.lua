-- admit: admit 1 to 1,000 jobs of one shard, or refuse them.
--
-- Guarantee: no admission takes a flow's depth above its capacity, and a job is refused as full
-- only if depth + size > capacity at this script's instant (invariant 1). It is refused as full of
-- bytes only if the payloads of the flow and of the job or batch exceed that bound, and as over its
-- share only if they and all else that is stored of the flow exceed that. A job whose id is stored
-- was admitted by an earlier sending of this call and gets the same answer (invariant 7). An
-- idempotency key makes one job, also within a call. Redis refuses the first write at maxmemory, so
-- the call fails there with nothing changed (invariant 9). Once a minute of a flow it subtracts
-- what Redis has expired of it, and of another flow of its tenant.
--
-- KEYS
--   1 clock   2 due   3 expires   4 tenants
--   then per flow: flow, queue, later, lines, flows
--   then per job: job, and idem if the job has an idempotency key
-- ARGV
--   1 instant in µs, or '' for the server's
--   2 horizon in µs
--   3 '1' for all or none
--   4 number of flows
--   5 what the store accepts no more: letters, b bytes, t tenants that are not in the index
--   6 four numbers: the share, which is the bytes that may be stored of a flow, 0 for no bound;
--     retention in s of finished jobs, of dead letters, of idempotency keys
--   then per flow: tier that the tenant's credential claims or '', entry in tenants, and '' or the
--   class that the tenant shares a part of the store with, if it has no settings of its own. It is
--   what the class may store no more, b or t as above, a colon, the share of the flow in bytes, 0
--   for that of any flow, a colon, and its name. The name - is no class, but all tenants without
--   settings of their own
--   then per job: its request, and the record from its cost on. The request begins with the number
--   of the flow, which is all that most jobs need. Otherwise follow, after a blank each: delay in
--   µs, max wait in ms (0: the policy's), and the hash and the fingerprint of an idempotency key
-- Reply
--   now, then an array per flow: limit and period in µs of its strictest pace, capacity, capacity
--   in bytes, time to next free capacity in µs, and where a job was over its share the bytes that
--   were stored of the flow, and its share; behind these, or two zeros, 1 where the tenant is new
--   in the index, else 0, and the number of tenants of its class in the shard;
--   then an array with four numbers per job: depth, bytes, position, estimated start (3, 7: when
--   all that are queued have left);
--   then an array with an array of details for each job that was not admitted into the queue by
--   this call: its number, outcome, state or '', retry after in µs, created, value of its key or
--   ''. Where there is no capacity the value is the number of jobs and of bytes that needed it, and
--   0 if they never fit, 1 if retry after is exact, 2 if it is an estimate; where its pool is full
--   also depth, capacity, bytes and capacity in bytes of that, or of the part of it that the flow
--   may hold. Where it costs too much, the value is its cost and the max cost. The answer to an
--   atomic batch that is refused describes the first job that was refused, and ends with the
--   numbers of that job's flow and of the job. outcome (1 admitted, 2 replayed, 3 full, 4 deadline
--   unreachable, 5 key reused, 6 draining, 7 full of bytes, 8 store full, 9 over share, 10 pool
--   full, 11 pool full of bytes, 12 part full, 13 part full of bytes, 14 too costly, 15 pool too
--   costly, 16 class store full); class is the part of the store that the flow's class may use,
--   part that of the pool which the flow may hold
-- Derived keys: flow queue later lines dead done job tenants flows kept wait ready reserve class
-- Channels: wake

--! include record clock turn pool policy bucket stored flow filing admission batch

-- An atomic batch needs capacity for all its jobs that were not admitted before.
local twins = {}
for a = first_arg, atomic and #ARGV or 0, 2 do
  local k = twins.k or first_key
  local key, f, _, _, hash = KEYS[k], asks_for(ARGV[a])
  local keyed = hash ~= ''
  local twin = twins[key] or keyed and twins[KEYS[k + 1]] -- a key makes one job, also within a call
  if not twin and (all_new or stored(key) == '' and not (keyed and redis.call('GET', KEYS[k + 1]))) then
    local p, payload = f.pool, n32(ARGV[a + 1], PAYLOAD_AT - COST_AT + 1)
    f.asked, f.asked_bytes = f.asked + 1, f.asked_bytes + payload
    if p then
      p.asked, p.asked_bytes = p.asked + 1, p.asked_bytes + payload
    end
  end
  twins[key], twins.k = true, k + (keyed and 2 or 1)
  if keyed then
    twins[KEYS[k + 1]] = true
  end
end

-- Decide, in memory only.
local decisions, written, details = {}, 0, {}
local placed = {} -- by id, where the answer to a job that this call has admitted begins
local made = {} -- by idempotency key, what this call stores under it
local refusal -- the flow of the first job that is refused
local records, recorded, deadlines, first_deadline = {}, 0, {}, FARTHEST

-- next_slot is the time until the next departure frees capacity. No admission changes it unless the
-- queue is empty.
local function next_slot(f)
  if f.queued == 0 or f.stopped then
    return 0
  end
  local first = start_of(f, 0, 0)
  return first ~= 0 and first - now or 0
end

-- answer appends the numbers of a job to the answer, and details if an outcome is given.
local function answer(f, position, start, outcome, state, after, created, known)
  local v, n = decisions, written
  v[n + 1], v[n + 2], v[n + 3], v[n + 4] = f.depth, f.bytes, position, start
  written = n + 4
  if outcome then
    details[#details + 1] = { written / 4, outcome, state or '', after or 0, created or 0, known or '' }
  end
end

-- refuse answers a job that is refused.
local function refuse(f, outcome, start, after, text)
  answer(f, 0, start, outcome, '', after, 0, text)
  f.rejected = f.rejected + 1
  f.touched = not f.unknown -- nothing is stored of a tenant that is refused and not in the index
  if f.touched then
    clock.rejected = clock.rejected + 1
  end
  refusal = refusal or f
end

-- admitted_before answers a job that an earlier sending of this call has admitted.
local function admitted_before(f, id, j)
  local position, start = estimate(f, id, j)
  answer(f, position, start, ADMITTED, j.state, 0, j.created)
end

-- repeated answers a job whose idempotency key exists.
local function repeated(f, known, print)
  local same = string.match(known, '^%S+ (%S+)') == print
  answer(f, 0, 0, same and REPLAYED or REUSED, '', 0, 0, known)
  refusal = refusal or not same and f or nil
end

-- asked_of returns the capacity that a job needs: its own, or that of the rest of an atomic batch.
local function asked_of(f, payload)
  if not atomic then
    return 1, payload
  end
  local size, bytes = f.asked, f.asked_bytes
  f.asked, f.asked_bytes = size - 1, bytes - payload
  return size, bytes
end

-- outcome_of decides on a job: outcome, estimated start and, if refused for a time, retry after,
-- and where there is no capacity asked_text, with the figures of its pool where that is full. Where
-- it costs too much, the text is its cost and the bound.
local function outcome_of(f, payload, delay, wait, cost)
  local size, bytes = asked_of(f, payload)
  if f.max_cost and cost > f.max_cost then
    local outcome = f.cost_of_pool and IN_POOL[TOO_COSTLY] or TOO_COSTLY
    return outcome, 0, 0, format('%d %d', cost, f.max_cost)
  end
  local drained = f.stopped and 0 or start_of(f, f.queued, f.cost)
  local start = drained
  if delay > 0 and drained ~= 0 then
    start = math.max(drained, now + delay)
  end
  local p, of = f.pool, nil
  local refusal, departures = full(f, size, bytes)
  local by, asked, asked_bytes = f, size, bytes
  if p then
    p.sampled = f
    local outcome, left, what, all, all_bytes = full_in_pool(f, size, bytes, asked_of(p, payload))
    if outcome and (not refusal or departures and not left) then -- never is the better answer
      refusal, departures, of, by, asked, asked_bytes = outcome, left, what, p, all, all_bytes
    end
  end
  if f.policy.draining then
    return DRAINING, 0, 0
  elseif refusal then
    local after, exact = retry_after(by, departures)
    local text = asked_text(asked, asked_bytes, departures, exact and refusal == FULL)
    if of then
      text = text .. format(' %d %d %d %d', of.depth, of.policy.capacity, of.bytes, of.policy.capacity_bytes)
    end
    return refusal, drained, after, text
  elseif no_bytes or no_tenants and f.unknown then
    return STORE_FULL, 0, 0
  elseif f.class_full then
    return CLASS_FULL, 0, 0
  elseif f.most and over_share(f, bytes) then
    replies[f.number][6], replies[f.number][7] = f.live_before + f.others, f.most
    return OVER_SHARE, 0, 0
  elseif wait > 0 and not f.stopped then
    -- By the paces alone: an estimate of deliveries refuses nothing.
    local sure = paced_start(f, f.queued, f.cost)
    if sure ~= 0 then
      sure = math.max(sure, now + delay)
    end
    if sure == 0 or sure > now + wait * 1000 then
      return UNREACHABLE, sure, 0
    end
  end
  return ADMITTED, start
end

-- queued appends a job to the queue and returns its position.
local function queued(f, cost, id)
  local list, n = f.add_queue, #f.add_queue
  list[n + 1], list[n + 2] = format('%d', f.seq), id
  if f.queued == 0 then
    enqueue(f, cost)
  else
    count_queued(f, cost)
  end
  return f.queued
end

-- write collects a record that is to be written.
local function write(f, key, record, bytes)
  f.live = f.live + bytes
  records[recorded + 1], records[recorded + 2] = key, record
  recorded = recorded + 2
end

-- again answers a job whose id is in the call a second time; the first answer begins there.
local function again(first)
  for i = 1, 4 do
    decisions[written + i] = decisions[first + i]
  end
  written = written + 4
  for i = 1, #details do
    if details[i][1] == first / 4 + 1 then
      details[#details + 1] = { written / 4, unpack(details[i], 2) }
    end
  end
end

-- decide answers the job whose keys begin at k, and collects what is to be written for it.
local function decide(k, f, delay, wait, hash, print, rest)
  local key, idem_key = KEYS[k], hash ~= '' and KEYS[k + 1]
  local id, payload = sub(key, id_at), n32(rest, PAYLOAD_AT - COST_AT + 1)
  if placed[id] then
    return again(placed[id])
  end
  local before = all_new and '' or stored(key)
  if before ~= '' then
    return admitted_before(f, id, job_read(before))
  end
  local known = idem_key and (made[idem_key] or not all_new and redis.call('GET', idem_key))
  if known then
    return repeated(f, known, print)
  end
  wait = wait > 0 and wait or f.policy.wait
  local outcome, start, after, text = outcome_of(f, payload, delay, wait, f.max_cost and n32(rest, 1))
  if outcome ~= ADMITTED then
    return refuse(f, outcome, start, after, text)
  end
  f.seq, f.touched = f.seq + 1, true
  local state, at, deadline, position = 'q', now + delay, 0, 0
  if wait > 0 then
    deadline = now + wait * 1000
    deadlines[#deadlines + 1] = format('%d', deadline)
    deadlines[#deadlines + 1] = id
    first_deadline = math.min(first_deadline, deadline)
  end
  if delay <= 0 then
    position = queued(f, n32(rest, 1), id)
  else
    state = 's'
    local list = f.add_later
    list[#list + 1] = format('%d', at)
    list[#list + 1] = id
    f.later_before = math.min(f.later_before or at, at)
  end
  f.depth, f.bytes = f.depth + 1, f.bytes + payload
  if f.pool then
    f.pool.depth, f.pool.bytes = f.pool.depth + 1, f.pool.bytes + payload
  end
  local record = job_new(state, at, deadline, f.seq, now, wait, rest)
  write(f, key, record, RECORD_BYTES + #record)
  placed[id] = written
  answer(f, position, start, delay > 0 and ADMITTED, state)
  if idem_key then
    made[idem_key] = id .. ' ' .. print
    write(f, idem_key, made[idem_key], KEY_BYTES + #f.name)
  end
end

for i = 1, atomic and flow_count or 0 do
  flows[i].next_before = next_slot(flows[i])
end
local k = first_key
for a = first_arg, #ARGV, 2 do
  local f, delay, wait, hash, print = numbered[ARGV[a]], 0, 0, ''
  if not f then
    f, delay, wait, hash, print = asks_for(ARGV[a])
  end
  decide(k, f, delay, wait, hash, print, ARGV[a + 1])
  k = k + (hash ~= '' and 2 or 1)
  if refusal and atomic then
    break
  end
end
if refusal and atomic then
  -- The reply describes the flow as it was read.
  local f, last = refusal, details[#details]
  replies[f.number][5] = f.next_before
  if last[2] ~= REUSED and not f.fresh then
    local count = (#ARGV - first_arg + 1) / 2
    redis.call('HINCRBY', f.key, 'rejected', count)
    clock.rejected = clock.rejected - 1 + count
    clock_save()
  end
  last[1] = 1
  return { now, replies, { f.depth_before, f.bytes_before, decisions[written - 1], decisions[written] },
    { last }, f.number, written / 4 }
end
local siblings = {} -- by name
for i = 1, flow_count do
  local f = flows[i]
  siblings[f.name] = false
  if f.looks and f.touched then
    lapsed_count(f)
    f.kept_before = f.kept
  end
  local admitted = f.seq - f.seq_before
  f.admitted, clock.admitted = f.admitted + admitted, clock.admitted + admitted
  clock.depth, clock.bytes = clock.depth + f.depth - f.depth_before, clock.bytes + f.bytes - f.bytes_before
  clock.stored = clock.stored + f.live - f.live_before
  f.leaves = f.touched and f.becomes ~= f.class and (f.class or '')
  if f.leaves then
    local before = f.live_before + f.dead_bytes + f.kept_before
    class_add(f.class, -before)
    class_add(f.becomes, before)
    f.class = f.becomes
  end
  class_add(f.class, f.live - f.live_before)
  replies[i][5] = next_slot(f)
end

for i = 1, flow_count do
  local f = flows[i]
  local other = f.looks and f.touched and f.sibling
  if other and siblings[other.name] == nil then
    lapsed_count(other)
    siblings[other.name] = other
  end
end

-- Write.
-- First the keys that were not read: one of a wrong type fails the call before anything is counted.
for i = 1, #flows do
  local f = flows[i]
  if f.touched then
    in_parts('ZADD', f.queue, last_first(f.add_queue), 1)
    in_parts('ZADD', f.later, f.add_later, 1)
    if f.leaves and f.leaves ~= '' then
      redis.call('HDEL', f.key, 'class')
      redis.call('SREM', PREFIX .. 'class:' .. f.leaves, tenant_of(f.name))
    end
    if f.leaves and f.class then
      redis.call('HSET', f.key, 'class', f.class)
      redis.call('SADD', PREFIX .. 'class:' .. f.class, tenant_of(f.name))
    end
    if f.fresh then
      redis.call('SADD', f.names, f.name)
    end
    if now - f.seen > SEEN_EVERY then
      f.seen = now
      redis.call('SADD', f.names, f.name) -- should the list have been deleted
      if redis.call('ZADD', KEYS[4], now, f.entry) == 1 then
        local r = replies[f.number]
        r[6], r[7], r[8] = r[6] or 0, r[7] or 0, 1
      end
    end
  end
end
if #deadlines > 0 then
  in_parts('ZADD', KEYS[3], deadlines, 1)
  wake_for(first_deadline + horizon, horizon)
end
in_parts('MSET', nil, records, 1)
local saved = false
for i = 1, #flows do
  local f = flows[i]
  if f.touched then
    if f.looks then
      lapsed_trim(f, keep_dead)
    end
    due_save(f, f.later_before, horizon)
    flow_save(f)
    saved = true
  end
  if f.class then
    local r = replies[f.number]
    r[6], r[7], r[8], r[9] = r[6] or 0, r[7] or 0, r[8] or 0, redis.call('SCARD', PREFIX .. 'class:' .. f.class)
  end
end
for _, other in pairs(siblings) do
  if other then
    redis.call('HSET', other.key, 'dead_bytes', format('%d', other.dead_bytes))
    lapsed_trim(other, FARTHEST)
  end
end
if saved then
  due_flush(horizon, true)
end
return { now, replies, decisions, details }
