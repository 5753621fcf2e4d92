-- admit: ask for places for 1 to 1,000 jobs of one shard.
--
-- Guarantee: no admission takes a flow's depth above its capacity, and a job is refused as full only if depth + size > capacity
-- at this script's instant (invariant 1), or full of bytes only if its payloads and those of the job or batch exceed that bound. A job whose id is stored already was admitted by an earlier sending of this call, and is
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
--   then per flow: tier that the tenant's credential claims or '', entry in tenants
--   then per job: number of its flow, idempotency hash or '', fingerprint or '', delay in µs, max wait in ms (0: the policy's), cost,
--   and the record from its cost on
-- Reply
--   now, then an array per flow: limit, period in µs, capacity, capacity in bytes
--   then an array per job, which may end early, what is missing being 0 or '':
--   outcome (1 admitted, 2 replayed, 3 full, 4 deadline unreachable, 5 key reused, 6 draining, 7 full of bytes, 8 store full), number of
--   its flow, depth, bytes, time to next free place in µs, position, estimated start, state, retry after in µs, created (0: now),
--   what the key knows
-- Derived keys: flow later policy
-- Channels: sluice:wake

--! include record clock flow
--! rarely policy_said retune_anew

local FLOW_KEYS, FLOW_ARGS, JOB_ARGS = 5, 2, 7
clock_load(ARGV[1])
local horizon, atomic, flow_count = tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])
local no_bytes, no_tenants = string.find(ARGV[6], 'b', 1, true), string.find(ARGV[6], 't', 1, true)

-- Read. Redis has looked for all that stands in KEYS when it took the call.
local flows, replies = {}, {}
for i = 1, flow_count do
  local k, a = 4 + (i - 1) * FLOW_KEYS, 6 + (i - 1) * FLOW_ARGS
  local f = flow_load(sub(KEYS[k + 1], #PREFIX + 6), ARGV[5], ARGV[a + 1], {})
  f.number, f.queue, f.later, f.names, f.entry = i, KEYS[k + 2], KEYS[k + 3], KEYS[k + 5], ARGV[a + 2]
  f.unknown = no_tenants and f.fresh and not redis.call('ZSCORE', KEYS[4], f.entry)
  f.later_before = later_head(f)
  f.add_queue, f.add_later, f.asked, f.asked_bytes, f.touched = {}, {}, 0, 0, f.retuned or (not f.fresh and f.tier ~= f.tier_before)
  flows[i] = f
  local p = f.policy
  replies[i] = { p.paces[1].limit, p.paces[1].period, p.capacity, p.capacity_bytes }
end

local jobs, k = {}, 4 + flow_count * FLOW_KEYS
local all_new = redis.call('EXISTS', unpack(KEYS, k + 1)) == 0 -- neither a job nor an idempotency key is known
local twins, count, id_at = {}, 0, #PREFIX + 5
for a = 6 + flow_count * FLOW_ARGS, #ARGV - 1, JOB_ARGS do
  k = k + 1
  local key, rest = KEYS[k], ARGV[a + 7]
  local s = {
    flow = flows[tonumber(ARGV[a + 1])], key = key, id = sub(key, id_at), delay = tonumber(ARGV[a + 4]), wait = tonumber(ARGV[a + 5]),
    cost = tonumber(ARGV[a + 6]), rest = rest, payload = n32(rest, 6), stored = '', state = 's',
  }
  if not all_new then
    s.stored = redis.call('GETRANGE', key, '0', UP_TO_PAYLOAD)
  end
  if ARGV[a + 2] ~= '' then
    k = k + 1
    s.idem_key, s.print = KEYS[k], ARGV[a + 3]
    s.known = not all_new and redis.call('GET', s.idem_key)
  end
  if atomic then
    if s.stored == '' and not s.known and not twins[s.id] then
      s.flow.asked, s.flow.asked_bytes = s.flow.asked + 1, s.flow.asked_bytes + s.payload
    end
    twins[s.id] = true
  end
  count = count + 1
  jobs[count] = s
end

-- Decide, in memory only.
local placed = {} -- verdicts by id: one id is one job, within the call, too
local made, verdicts, refusal, refused = {}, {}, nil, nil

-- next_slot is the time until a place frees. In a queue that is not empty no admission changes it.
local function next_slot(f)
  if not f.next_slot then
    if f.queued == 0 or paused(f) then
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

for i = 1, #jobs do
  local s = jobs[i]
  local f = s.flow
  local p = f.policy
  local known = s.known or made[s.idem_key]
  if s.stored ~= '' then
    local j = job_read(s.stored)
    local position, start = 0, 0
    if j.state == 'q' then
      position, start = place_of(f, redis.call('ZRANK', f.queue, s.id) or 0)
    elseif j.state == 's' and not paused(f) then
      start = max(start_after(f, f.cost), j.at)
    end
    verdicts[i] = verdict(f, 1, position, start, j.state, 0, j.created)
  elseif placed[s.id] then
    verdicts[i] = placed[s.id]
  elseif known then
    local same = string.match(known, '^%S+ (%S+)') == s.print
    verdicts[i] = verdict(f, same and 2 or 5, 0, 0, '', 0, 0, known)
    if not same then
      refusal = refusal or verdicts[i]
    end
  else
    local size, bytes = atomic and f.asked or 1, atomic and f.asked_bytes or s.payload
    f.asked, f.asked_bytes = f.asked - 1, f.asked_bytes - s.payload
    local wait = s.wait > 0 and s.wait or p.wait
    local start = start_after(f, f.cost)
    if start ~= 0 then
      start = max(start, now + s.delay)
    end
    local of, departures = full(f, size, bytes)
    local refuses
    if p.draining then
      refuses = verdict(f, 6)
    elseif of then
      refuses = verdict(f, of == 'jobs' and 3 or 7, 0, 0, '', departures and retry_after(f, departures) or 0)
    elseif no_bytes or f.unknown then
      refuses = verdict(f, 8)
    elseif wait > 0 and not paused(f) and (start == 0 or start > now + wait * 1000) then
      refuses = verdict(f, 4, 0, start)
    end
    if refuses then
      f.rejected = f.rejected + 1
      f.touched = not f.unknown -- a tenant that finds no room leaves no trace
      if f.touched then
        clock.rejected = clock.rejected + 1
      end
      verdicts[i] = refuses
      refusal, refused = refusal or refuses, refused or f
    else
      f.touched = true
      f.seq = f.seq + 1
      s.admitted, s.seq, s.at, s.wait, s.deadline = true, f.seq, now + s.delay, wait, 0
      if wait > 0 then
        s.deadline = now + wait * 1000
      end
      local position = 0
      if s.delay <= 0 then
        s.state = 'q'
        local first = f.queued == 0
        enqueue(f, s.cost)
        if first then
          f.first = max(earliest(f), now) -- from now on the same, for nothing leaves here
        end
        position = f.queued
      end
      take_place(f, s)
      f.admitted, clock.admitted = f.admitted + 1, clock.admitted + 1
      verdicts[i] = verdict(f, 1, position, paused(f) and 0 or start, s.state)
      placed[s.id] = verdicts[i]
      if s.idem_key then
        made[s.idem_key] = s.id .. ' ' .. s.print
      end
    end
  end
end
if atomic and refusal then
  for i = 1, #jobs do
    verdicts[i] = refusal
  end
  if refused and not refused.fresh then
    redis.call('HINCRBY', refused.key, 'rejected', #jobs)
    redis.call('HINCRBY', KEYS[1], 'rejected', #jobs)
  end
  return { now, replies, verdicts }
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

local saved = false
for i = 1, #flows do
  local f = flows[i]
  if f.touched then
    if not saved then
      clock_save()
      saved = true
    end
    if f.fresh then
      redis.call('SADD', f.names, f.name)
    end
    if now - f.seen > SEEN_EVERY then
      f.seen = now
      redis.call('ZADD', KEYS[4], now, f.entry)
    end
    flow_save(f)
  end
end
local records, filled, deadlines, first_deadline = {}, 0, {}, FARTHEST
for i = 1, #jobs do
  local s = jobs[i]
  if s.admitted then
    local f = s.flow
    records[filled + 1] = s.key
    records[filled + 2] = job_new(s.state, s.at, s.deadline, s.seq, now, s.wait, s.rest)
    filled = filled + 2
    if s.state == 'q' then
      local list = f.add_queue
      list[#list + 1] = s.seq
      list[#list + 1] = s.id
    else
      local list = f.add_later
      list[#list + 1] = s.at
      list[#list + 1] = s.id
      f.later_before = min(f.later_before or s.at, s.at)
    end
    if s.deadline > 0 then
      deadlines[#deadlines + 1] = s.deadline
      deadlines[#deadlines + 1] = s.id
      first_deadline = min(first_deadline, s.deadline)
    end
    if s.idem_key then
      records[filled + 1] = s.idem_key
      records[filled + 2] = made[s.idem_key]
      filled = filled + 2
    end
  end
end
in_parts('MSET', nil, records)
if #deadlines > 0 then
  in_parts('ZADD', KEYS[3], deadlines)
  wake_for(first_deadline + horizon, horizon)
end
for i = 1, #flows do
  local f = flows[i]
  if f.touched then
    in_parts('ZADD', f.queue, f.add_queue)
    in_parts('ZADD', f.later, f.add_later)
    due_save(f, f.later_before, horizon)
  end
end
due_flush()
if saved and clock.wake ~= clock_was[2] then
  clock_save()
end
return { now, replies, verdicts }
