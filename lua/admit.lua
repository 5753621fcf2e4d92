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
--   now, then per job an array:
--   outcome (1 admitted, 2 replayed, 3 full, 4 deadline unreachable, 5 key reused, 6 draining, 7 full of bytes, 8 store full), position, estimated start,
--   depth, capacity, retry after in µs, time to next free place in µs, limit, period in µs, state, created (0 unless admitted),
--   what the key knows, bytes, capacity in bytes
-- Derived keys: flow later dead policy due unlock (dead and unlock alone are not declared, and not used)
-- Channels: sluice:wake

--! include record clock flow

local FLOW_KEYS, FLOW_ARGS, JOB_ARGS = 5, 2, 7
clock_load(ARGV[1])
local horizon, atomic, flow_count = tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])
local no_bytes, no_tenants = string.find(ARGV[6], 'b', 1, true), string.find(ARGV[6], 't', 1, true)

-- Read.
redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4])
local flows = {}
for i = 1, flow_count do
  local k, a = 4 + (i - 1) * FLOW_KEYS, 6 + (i - 1) * FLOW_ARGS
  local f = flow_load(string.sub(KEYS[k + 1], #PREFIX + 6), ARGV[5], ARGV[a + 1])
  redis.call('EXISTS', KEYS[k + 2], KEYS[k + 3], KEYS[k + 5])
  f.queue, f.later, f.names, f.entry = KEYS[k + 2], KEYS[k + 3], KEYS[k + 5], ARGV[a + 2]
  f.unknown = no_tenants and f.fresh and not redis.call('ZSCORE', KEYS[4], f.entry)
  f.later_before = later_head(f)
  f.add_queue, f.add_later, f.asked, f.asked_bytes, f.touched = {}, {}, 0, 0, f.retuned or (not f.fresh and f.tier ~= f.tier_before)
  flows[i] = f
end

local twins = {}
local jobs, k = {}, 4 + flow_count * FLOW_KEYS
for a = 6 + flow_count * FLOW_ARGS, #ARGV - 1, JOB_ARGS do
  local s = {
    flow = flows[tonumber(ARGV[a + 1])], idem = ARGV[a + 2], print = ARGV[a + 3], delay = tonumber(ARGV[a + 4]),
    wait = tonumber(ARGV[a + 5]), cost = tonumber(ARGV[a + 6]), rest = ARGV[a + 7],
    payload = n32(ARGV[a + 7], 6),
  }
  k = k + 1
  s.key = KEYS[k]
  s.id = string.sub(s.key, #PREFIX + 5)
  s.stored = redis.call('GETRANGE', s.key, 0, UP_TO_PAYLOAD - 1)
  if s.idem ~= '' then
    k = k + 1
    s.idem_key = KEYS[k]
    s.known = redis.call('GET', s.idem_key)
  end
  if s.stored == '' and not s.known and not twins[s.id] then
    s.flow.asked, s.flow.asked_bytes = s.flow.asked + 1, s.flow.asked_bytes + s.payload
  end
  twins[s.id] = true
  jobs[#jobs + 1] = s
end

-- Decide, in memory only.
local placed = {} -- verdicts by id: one id is one job, within the call, too
local made, verdicts, refusal, refused = {}, {}, nil, nil
local function verdict(f, outcome, position, start, after, state, created, known)
  local p, next_slot = f.policy, 0
  if f.queued > 0 and not paused(f) then
    local first = start_after(f, 0)
    if first ~= 0 then
      next_slot = first - now
    end
  end
  return { outcome, position, start, f.depth, p.capacity, after, next_slot, p.paces[1].limit, p.paces[1].period, state, created, known,
    f.bytes, p.capacity_bytes }
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
    verdicts[i] = verdict(f, 1, position, start, 0, j.state, j.created, '')
  elseif placed[s.id] then
    verdicts[i] = placed[s.id]
  elseif known then
    local same = string.match(known, '^%S+ (%S+)') == s.print
    verdicts[i] = verdict(f, same and 2 or 5, 0, 0, 0, '', 0, known)
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
      refuses = verdict(f, 6, 0, 0, 0, '', 0, '')
    elseif of then
      refuses = verdict(f, of == 'jobs' and 3 or 7, 0, 0, departures and retry_after(f, departures) or 0, '', 0, '')
    elseif no_bytes or f.unknown then
      refuses = verdict(f, 8, 0, 0, 0, '', 0, '')
    elseif wait > 0 and not paused(f) and (start == 0 or start > now + wait * 1000) then
      refuses = verdict(f, 4, 0, start, 0, '', 0, '')
    end
    if refuses then
      f.rejected = f.rejected + 1
      f.touched = not f.unknown -- a tenant that finds no room leaves no trace
      verdicts[i] = refuses
      refusal, refused = refusal or refuses, refused or f
    else
      s.admitted = true
      f.touched = true
      f.seq = f.seq + 1
      s.seq, s.state, s.at, s.wait, s.deadline = f.seq, 's', now + s.delay, wait, 0
      if wait > 0 then
        s.deadline = now + wait * 1000
      end
      local position = 0
      if s.delay <= 0 then
        s.state = 'q'
        enqueue(f, s.cost)
        position = f.queued
      end
      take_place(f, s)
      f.admitted = f.admitted + 1
      verdicts[i] = verdict(f, 1, position, paused(f) and 0 or start, 0, s.state, now, '')
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
  end
  return { now, verdicts }
end

-- Write.
local function add_all(key, pairs_of)
  for from = 1, #pairs_of, 500 do
    redis.call('ZADD', key, unpack(pairs_of, from, min(from + 499, #pairs_of)))
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
for i = 1, #jobs do
  local s = jobs[i]
  if s.admitted then
    local f = s.flow
    redis.call('SET', s.key, job_changing({
      state = s.state, epoch = 0, attempts = 0, free = 0, outcome = '-', tag = 0, stamp = 0, at = s.at, deadline = s.deadline,
      seq = s.seq, result = 0, created = now, wait = s.wait,
    }) .. s.rest)
    local list = s.state == 'q' and f.add_queue or f.add_later
    list[#list + 1] = s.state == 'q' and s.seq or s.at
    list[#list + 1] = s.id
    if s.deadline > 0 then
      redis.call('ZADD', KEYS[3], s.deadline, s.id)
      wake_for(s.deadline + horizon, horizon)
    end
    if s.idem_key then
      redis.call('SET', s.idem_key, made[s.idem_key])
    end
    if s.state == 's' then
      f.later_before = min(f.later_before or s.at, s.at)
    end
  end
end
for i = 1, #flows do
  local f = flows[i]
  if f.touched then
    add_all(f.queue, f.add_queue)
    add_all(f.later, f.add_later)
    due_save(f, f.later_before, horizon)
  end
end
if saved and clock.wake ~= clock_was.wake then
  clock_save()
end
return { now, verdicts }
