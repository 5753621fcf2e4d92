-- settle: end leases of one shard.
--
-- Guarantee: a settlement whose epoch is not the job's current lease changes nothing and says so (invariant 5). Sent again, it gets
-- the same answer as the first time (invariant 7), for as long as the job has not been leased anew and settled again.
--
-- KEYS
--   1 clock   2 due   3 expires   4 leases   5 outbox
--   then per job: job
-- ARGV
--   1 instant in µs, or '' for the server's   2 horizon in µs   3 baseline
--   4, 5, 6 retention in s: of finished jobs, of dead letters, of idempotency keys   7 most dead letters of a flow
--   then per job: epoch, outcome, delay in µs (retry: until eligible; held: how long), max attempts (0 keeps them), result or ''
--   for the one kept
--   An outcome is S succeeded, r retry, d dead, h held, R released.
-- Reply
--   now, then per job: 1 settled, 2 repeated, 3 stale
-- Derived keys: flow queue later policy job idem done dead expires outbox unlock
-- Channels: sluice:wake sluice:done

--! include record clock flow finish

local JOB_ARGS, SETTLED, REPEATED, STALE = 5, 1, 2, 3
clock_load(ARGV[1])
local horizon, baseline = tonumber(ARGV[2]), ARGV[3]
retention_of(ARGV[4], ARGV[5], ARGV[6], ARGV[7])

-- Read.
redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4], KEYS[5])
local flows, touched, jobs, ids, read = {}, {}, {}, {}, {}
local settled_baseline = clock.baseline == baseline and clock.looked == '0'
local id_at = #PREFIX + 5
for k = 6, #KEYS do
  local key = KEYS[k]
  local id = sub(key, id_at)
  ids[k] = id
  local whole = ARGV[7 + (k - 6) * JOB_ARGS + 2] ~= 'S'
  if whole and read[id] == 'part' then
    read[id] = nil
  end
  if not read[id] then
    local raw = redis.call('GETRANGE', key, '0', UP_TO_PAYLOAD)
    local j = not whole and job_succeeding(raw)
    read[id] = j and 'part' or 'whole'
    j = j or job_read(raw)
    if j and read[id] == 'whole' then
      finish_reads(j)
    end
    if j and not flows[j.flow] then
      local f = flow_load(j.flow, baseline, nil, true)
      flow_reach(f)
      f.later_before = later_head(f)
      -- While a change of the baseline is not yet carried to all flows, what is filed may be wrong.
      f.same_due = settled_baseline and not f.retuned and (f.policy.concurrency == 0 or f.running < f.policy.concurrency)
      flows[j.flow] = f
    end
    jobs[id] = j
  end
end

-- Write.
unlock()

local function keep_result(id, j, result)
  if result ~= '' then
    j.result = #result
    redis.call('SETRANGE', PREFIX .. 'job:' .. id, j.prefix + j.payload, result)
  end
end

local function retry_later(id, j, f, delay, result)
  keep_result(id, j, result)
  j.state, j.at = 'r', now + delay
  redis.call('SETRANGE', PREFIX .. 'job:' .. id, 0, job_head(j))
  redis.call('ZADD', PREFIX .. 'later:' .. f.name, j.at, id)
  if j.deadline > 0 then
    redis.call('ZADD', KEYS[3], j.deadline, id)
  end
  f.later_before = min(f.later_before or j.at, j.at)
  take_place(f, j)
end

local ended = {} -- ids of the leases

-- apply settles a current lease.
local function apply(id, outcome, delay, most, result, j, f)
  local dead = outcome == 'd'
  if most > 0 then
    j.max = most
  end
  if outcome == 'S' or outcome == 'r' or dead then
    j.attempts = j.attempts + 1
    dead = dead or (outcome == 'r' and j.attempts >= j.max)
  end
  j.outcome = outcome
  ended[#ended + 1] = id
  f.same_due = f.same_due and outcome == 'S'
  f.running = f.running - 1
  clock.running = clock.running - 1
  if outcome == 'h' then
    hold(f, now + delay)
    dead = charge_free(j)
  end
  if dead then
    f.dead = f.dead + 1
    finish(id, j, f, 'd', result)
  elseif outcome == 'S' then
    f.succeeded = f.succeeded + 1
    finish(id, j, f, 'S', result)
  elseif outcome == 'r' then
    retry_later(id, j, f, delay, result)
  else
    if outcome == 'R' then
      refund(f, j.stamp, j.cost)
      f.departed, clock.departed = f.departed - 1, clock.departed - 1
    end
    keep_result(id, j, result)
    give_back(id, j, f)
  end
end

-- succeed is what apply and finish come to for a job that job_succeeding has read, which is how most jobs end.
local function succeed(key, id, j, f, most, result)
  local raw = j.raw
  ended[#ended + 1] = id
  f.running, f.succeeded, clock.running = f.running - 1, f.succeeded + 1, clock.running - 1
  local kept = result == '' and n24(raw, 42) or 0
  if kept > 0 then
    local from = j.prefix + n32(raw, 62)
    result = redis.call('GETRANGE', key, from, from + kept - 1)
  end
  j.state, j.outcome, j.attempts = 'S', 'S', j.attempts + 1
  ended_now = ended_now or u56(now) .. ZERO7
  redis.call('SET', key, job_ended(j, ended_now, result, most > 0 and most or byte(raw, 58) * 256 + byte(raw, 59)), 'EX', expiry)
  f.ended = f.ended or {}
  f.ended[#f.ended + 1] = id
  redis.call('PUBLISH', 'sluice:done:' .. id, 'S')
end

local reply = { now }
for k = 6, #KEYS do
  local a, id = 7 + (k - 6) * JOB_ARGS, ids[k]
  local epoch, outcome, j = tonumber(ARGV[a + 1]), ARGV[a + 2], jobs[id]
  if not j then
    reply[k - 4] = STALE
  elseif j.state == 'l' and j.epoch == epoch then
    local f = flows[j.flow]
    if read[id] == 'part' then
      succeed(KEYS[k], id, j, f, tonumber(ARGV[a + 4]), ARGV[a + 5])
    else
      apply(id, outcome, tonumber(ARGV[a + 3]), tonumber(ARGV[a + 4]), ARGV[a + 5], j, f)
    end
    if not f.touched then
      f.touched = true
      touched[#touched + 1] = f
    end
    reply[k - 4] = SETTLED
  else
    -- While a job is leased again, its last outcome is that of the lease before.
    local settled = j.state == 'l' and j.epoch - 1 or j.epoch
    reply[k - 4] = (settled == epoch and j.outcome == outcome) and REPEATED or STALE
  end
end
if #ended > 0 then
  redis.call('ZREM', KEYS[4], unpack(ended))
end
for i = 1, #touched do
  finish_save(touched[i])
  flow_save(touched[i])
  due_save(touched[i], touched[i].later_before, horizon, touched[i].same_due)
end
due_flush()
if #touched > 0 then
  clock_save()
end
return reply
