-- admit: ask for places for 1 to 1,000 jobs of one shard.
--
-- Guarantee: no admission takes a flow's depth above its capacity, and a job is refused as full only if depth + size > capacity
-- at this script's instant (invariant 1), or full of bytes only if its payloads and those of the job or batch exceed that bound, or over
-- its share only if they and all that is stored of the flow exceed that. A job whose id is stored already was admitted by an earlier sending of this call, and is
-- answered again (invariant 7). An idempotency key makes one job: within the call, too. The first write is one that Redis
-- refuses at maxmemory, so the call fails there with nothing changed (invariant 9).
--
-- KEYS
--   1 clock   2 due   3 expires   4 tenants
--   then per flow: flow, queue, later, policy, flows
--   then per job: job, and idem if the job has an idempotency key
-- ARGV
--   1 instant in µs, or '' for the server's   2 horizon in µs   3 '1' for all or none   4 number of flows
--   5 baseline   6 what the store takes no more of: '' or letters, b bytes, t tenants that it does not know
--   7 '' or four numbers: bytes that may be stored of a flow, its share; retention in s of finished jobs, of dead letters, of idempotency keys
--   then per flow: tier that the tenant's credential claims or '', entry in tenants
--   then per job: what it asks for, and the record from its cost on. Most ask for nothing but a place: that is the number of the flow.
--   Else numbers and hashes follow, after a blank each: delay in µs, max wait in ms (0: the policy's), and for a job that has an
--   idempotency key its hash and the fingerprint
-- Reply
--   now, then an array per flow: limit, period in µs, capacity, capacity in bytes, time to next free place in µs, and where a job was over
--   its share the bytes that were stored of the flow; then an array with, per job, either four numbers, if it asked for nothing but a place and has it in the queue: depth, bytes, position,
--   estimated start; or an array, which may end early, what is missing being 0 or '':
--   outcome (1 admitted, 2 replayed, 3 full, 4 deadline unreachable, 5 key reused, 6 draining, 7 full of bytes, 8 store full, 9 over share), number
--   of its flow, depth, bytes, time to next free place in µs, position, estimated start (3, 7: when all that are queued have left), state, retry after in µs, created (0: now),
--   what the key knows
-- Derived keys: flow later policy dead tenants
-- Channels: sluice:wake

--! include record clock policy bucket stored flow admission

local FLOW_KEYS, FLOW_ARGS = 5, 2
local SEEN_EVERY = 60000000 -- µs between two notes of a tenant's activity
clock_load(ARGV[1])
local horizon, atomic, flow_count = tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])
local no_bytes, no_tenants = string.find(ARGV[6], 'b', 1, true), string.find(ARGV[6], 't', 1, true)
local most_stored, keep_answers, keep_dead, keep_keys = string.match(ARGV[7], '^(%d+) (%d+) (%d+) (%d+)$')
most_stored = tonumber(most_stored)

-- Read. Redis has looked for all that stands in KEYS when it took the call.
local flows, numbered, replies = {}, {}, {}
for i = 1, flow_count do
  local k, a = 4 + (i - 1) * FLOW_KEYS, 7 + (i - 1) * FLOW_ARGS
  local f = flow_load(sub(KEYS[k + 1], #PREFIX + 6), ARGV[5], ARGV[a + 1], {})
  local p = f.policy
  f.number, f.queue, f.later, f.names, f.entry = i, KEYS[k + 2], KEYS[k + 3], KEYS[k + 5], ARGV[a + 2]
  f.unknown = no_tenants and f.fresh and not redis.call('ZSCORE', KEYS[4], f.entry)
  f.stopped = paused(f)
  f.later_before = later_known(f)
  if f.fresh and redis.call('EXISTS', f.queue, f.later) > 0 then
    flow_known(f)
  end
  f.add_queue, f.add_later, f.asked, f.asked_bytes, f.touched = {}, {}, 0, 0, f.retuned or (not f.fresh and f.tier ~= f.tier_before)
  -- Whether a job that asks for nothing but a place needs to be told no more than whether there is one.
  f.plain = not (p.draining or no_bytes or f.unknown or p.wait > 0)
  flows[i], numbered[format('%d', i)] = f, f
  replies[i] = { p.paces[1].limit, p.paces[1].period, p.capacity, p.capacity_bytes, 0 }
  f.seq_before, f.depth_before, f.bytes_before, f.live_before = f.seq, f.depth, f.bytes, f.live
  if most_stored then
    f.others = f.dead_bytes + aged_sum(f, ANSWERS, keep_answers * 1000000) + aged_sum(f, IDEMPOTENCY, max(keep_answers, keep_keys) * 1000000)
  end
end

-- over_share returns whether bytes more would take the flow over its share of the store. It first
-- subtracts dead letters past retention, which Redis has deleted.
local function over_share(f, bytes)
  if not most_stored or f.live + f.others + bytes <= most_stored then
    return false
  end
  if f.dead_bytes > 0 and not f.dead_counted then
    f.dead_counted = true
    f.others = f.others - f.dead_bytes + dead_alive(f, keep_dead * 1000000)
  end
  return f.live + f.others + bytes > most_stored
end

local first_key, first_arg = 5 + flow_count * FLOW_KEYS, 8 + flow_count * FLOW_ARGS
local all_new = redis.call('EXISTS', unpack(KEYS, first_key)) == 0 -- neither a job nor an idempotency key is known
local id_at = #PREFIX + 5

-- special is what is to be known of a job that plain does not do for, of the keys from k on.
local function special(k, ask, rest)
  local number, delay, wait, hash, print = string.match(ask, '^(%d+) ?(%d*) ?(%d*) ?(%S*) ?(%S*)$')
  local key = KEYS[k]
  local s = {
    flow = numbered[number], key = key, id = sub(key, id_at), delay = tonumber(delay) or 0, wait = tonumber(wait) or 0, cost = byte(rest, 1),
    rest = rest, payload = n32(rest, 6), stored = '', state = 's',
  }
  if not all_new then
    s.stored = redis.call('GETRANGE', key, '0', UP_TO_PAYLOAD)
  end
  if hash ~= '' then
    s.idem_key, s.print = KEYS[k + 1], print
    s.known = not all_new and redis.call('GET', s.idem_key)
  end
  return s
end

local jobs, twins, count, k = {}, {}, 0, first_key -- a job is its flow if it asks for nothing but a place, else what special says of it
for a = first_arg, #ARGV, 2 do
  local f = all_new and numbered[ARGV[a]]
  local s = not f and special(k, ARGV[a], ARGV[a + 1])
  if atomic then
    local key, of = KEYS[k], f or s.flow
    if not (twins[key] or s and (s.stored ~= '' or s.known)) then
      of.asked, of.asked_bytes = of.asked + 1, of.asked_bytes + n32(ARGV[a + 1], 6)
    end
    twins[key] = true
  end
  count, k = count + 1, k + (s and s.idem_key and 2 or 1)
  jobs[count] = f or s
end

-- Decide, in memory only.
local verdicts, filled = {}, 0
local placed = {} -- verdicts by id, or where they begin: one id is one job, within the call, too
local made, refusal, refused = {}, nil, nil
local records, recorded, deadlines, first_deadline = {}, 0, {}, FARTHEST

-- next_slot is the time until a place frees. In a queue that is not empty no admission changes it.
local function next_slot(f)
  if not f.next_slot then
    if f.queued == 0 or f.stopped then
      return 0
    end
    local first = start_after(f, 0)
    f.next_slot = first ~= 0 and first - now or 0
  end
  return f.next_slot
end

local function verdict(f, outcome, position, start, state, after, created, known)
  return { outcome, f.number, f.depth, f.bytes, next_slot(f), position, start, state, after, created, known }
end

-- queued counts a job into the queue, by its id; the answer is its position.
local function queued(f, cost, id)
  local list, n = f.add_queue, #f.add_queue
  list[n + 1], list[n + 2] = format('%d', f.seq), id
  local first = f.queued == 0
  enqueue(f, cost)
  if first then
    f.first = max(earliest(f), now) -- from now on the same, for nothing leaves here
  end
  return f.queued
end

-- admit writes down a job that has a place.
local function admit(f, key, payload, record)
  f.touched = true
  f.depth, f.bytes, f.live = f.depth + 1, f.bytes + payload, f.live + RECORD_BYTES + #record
  records[recorded + 1], records[recorded + 2] = key, record
  recorded = recorded + 2
end

-- judging makes the function that decides on a job of which special says something; most calls do without.
local function judging()
  return function(s)
    local f = s.flow
    local p = f.policy
    local known = s.known or made[s.idem_key]
    local v
    if s.stored ~= '' then
      local j = job_read(s.stored)
      local position, start = 0, 0
      if j.state == 'q' then
        position, start = place_of(f, redis.call('ZRANK', f.queue, s.id) or 0)
      elseif j.state == 's' and not f.stopped then
        start = max(start_after(f, f.cost), j.at)
      end
      return verdict(f, 1, position, start, j.state, 0, j.created)
    elseif known then
      local same = string.match(known, '^%S+ (%S+)') == s.print
      v = verdict(f, same and 2 or 5, 0, 0, '', 0, 0, known)
      if not same then
        refusal = refusal or v
      end
      return v
    end
    local size, bytes = atomic and f.asked or 1, atomic and f.asked_bytes or s.payload
    f.asked, f.asked_bytes = f.asked - 1, f.asked_bytes - s.payload
    local wait = s.wait > 0 and s.wait or p.wait
    local drained = f.stopped and 0 or start_after(f, f.cost)
    local start = drained ~= 0 and max(drained, now + s.delay) or 0
    local of, departures = full(f, size, bytes)
    if p.draining then
      v = verdict(f, 6)
    elseif of then
      v = verdict(f, of == 'jobs' and 3 or 7, 0, drained, '', departures and retry_after(f, departures) or 0)
    elseif no_bytes or f.unknown then
      v = verdict(f, 8)
    elseif over_share(f, bytes) then
      v = verdict(f, 9)
      replies[f.number][6] = f.live_before + f.others
    elseif wait > 0 and not f.stopped and (start == 0 or start > now + wait * 1000) then
      v = verdict(f, 4, 0, start)
    end
    if v then
      f.rejected = f.rejected + 1
      f.touched = not f.unknown -- a tenant that finds no room leaves no trace
      if f.touched then
        clock.rejected = clock.rejected + 1
      end
      refusal, refused = refusal or v, refused or f
      return v
    end
    f.seq = f.seq + 1
    local at, deadline, position = now + s.delay, 0, 0
    if wait > 0 then
      deadline = now + wait * 1000
      deadlines[#deadlines + 1] = format('%d', deadline)
      deadlines[#deadlines + 1] = s.id
      first_deadline = min(first_deadline, deadline)
    end
    if s.delay <= 0 then
      s.state = 'q'
      position = queued(f, s.cost, s.id)
    else
      local list = f.add_later
      list[#list + 1] = format('%d', at)
      list[#list + 1] = s.id
      f.later_before = min(f.later_before or at, at)
    end
    admit(f, s.key, s.payload, job_new(s.state, at, deadline, f.seq, now, wait, s.rest))
    v = verdict(f, 1, position, start, s.state)
    placed[s.id] = v
    if s.idem_key then
      f.live = f.live + KEY_BYTES + #f.name
      made[s.idem_key] = s.id .. ' ' .. s.print
      records[recorded + 1], records[recorded + 2] = s.idem_key, made[s.idem_key]
      recorded = recorded + 2
    end
    return v
  end
end

local judge
k = first_key
for i = 1, count do
  local f, key, rest = jobs[i], KEYS[k], ARGV[first_arg + 2 * i - 1]
  local s, id, payload = f.flow and f, sub(key, id_at), n32(rest, 6)
  local twin, own = placed[id], k
  k = k + (s and s.idem_key and 2 or 1)
  local bytes = atomic and f.asked_bytes or payload
  if not (s or twin) and f.plain and not full(f, atomic and f.asked or 1, bytes) and not over_share(f, bytes) then
    -- What judge does, for a job that asks for nothing but a place and has it.
    f.asked, f.asked_bytes, f.seq = f.asked - 1, f.asked_bytes - payload, f.seq + 1
    local start = f.stopped and 0 or start_after(f, f.cost)
    local position = queued(f, byte(rest, 1), id)
    admit(f, key, payload, job_new('q', now, 0, f.seq, now, 0, rest))
    placed[id] = filled
    verdicts[filled + 1], verdicts[filled + 2], verdicts[filled + 3], verdicts[filled + 4] = f.depth, f.bytes, position, start
    filled = filled + 4
  elseif type(twin) == 'number' then
    verdicts[filled + 1], verdicts[filled + 2], verdicts[filled + 3], verdicts[filled + 4] = unpack(verdicts, twin + 1, twin + 4)
    filled = filled + 4
  else
    if not (s or twin) then
      s = special(own, ARGV[first_arg + 2 * i - 2], rest)
    end
    judge = judge or judging()
    filled = filled + 1
    verdicts[filled] = twin or judge(s)
  end
end
if atomic and refusal then
  -- It is told of the flow as it was read, for nothing of the batch is in it; was[5] of those are queued.
  local f = flows[refusal[2]]
  refusal[3], refusal[4], refusal[5] = f.depth_before, f.bytes_before, f.was[5] ~= 0 and refusal[5] or 0
  verdicts = {}
  for i = 1, count do
    verdicts[i] = refusal
  end
  if refused and not refused.fresh then
    redis.call('HINCRBY', refused.key, 'rejected', count)
    redis.call('HINCRBY', KEYS[1], 'rejected', count)
  end
  return { now, replies, verdicts }
end
for i = 1, flow_count do
  local f = flows[i]
  local admitted = f.seq - f.seq_before
  f.admitted, clock.admitted = f.admitted + admitted, clock.admitted + admitted
  clock.depth, clock.bytes = clock.depth + f.depth - f.depth_before, clock.bytes + f.bytes - f.bytes_before
  clock.stored = clock.stored + f.live - f.live_before
  replies[i][5] = next_slot(f)
end

-- Write.
local MOST = 1000 -- arguments of one command
local function in_parts(cmd, key, list)
  for from = 1, #list, MOST do
    local to = min(from + MOST - 1, #list)
    if key then
      redis.call(cmd, key, unpack(list, from, to))
    else
      redis.call(cmd, unpack(list, from, to))
    end
  end
end

-- First what may fail because a key that was not read is of another type: until then nothing is counted, and the same call may be made again.
for i = 1, #flows do
  local f = flows[i]
  if f.touched then
    in_parts('ZADD', f.queue, f.add_queue)
    in_parts('ZADD', f.later, f.add_later)
    if f.fresh then
      redis.call('SADD', f.names, f.name)
    end
    if now - f.seen > SEEN_EVERY then
      f.seen = now
      redis.call('SADD', f.names, f.name) -- should the list have been deleted
      redis.call('ZADD', KEYS[4], now, f.entry)
    end
  end
end
if #deadlines > 0 then
  in_parts('ZADD', KEYS[3], deadlines)
  wake_for(first_deadline + horizon, horizon)
end
in_parts('MSET', nil, records)
local saved = false
for i = 1, #flows do
  local f = flows[i]
  if f.touched then
    flow_save(f)
    due_save(f, f.later_before, horizon)
    saved = true
  end
end
if saved then
  clock_save()
end
due_flush()
return { now, replies, verdicts }
