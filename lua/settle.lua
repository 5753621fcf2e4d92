-- settle: end leases of one shard.
--
-- Guarantee: a settlement whose epoch is not that of the job's current lease changes nothing and is
-- answered as stale (invariant 5). Sent again, it gets the same answer as the first time (invariant
-- 7), until the job was leased anew and settled again.
--
-- KEYS
--   1 clock   2 due   3 expires   4 leases   5 outbox
--   then per job: job
-- ARGV
--   1 instant in µs, or '' for the server's   2 horizon in µs
--   3, 4, 5 retention in s: of finished jobs, of dead letters, of idempotency keys
--   6, 7 most dead letters of a flow, and of how many bytes
--   8 '' or, in a call for forwarded requests, how many bytes of their answers a flow may keep.
--     Beyond that the oldest answers go, and their jobs with them
--   then per job: S and the epoch, as one argument, if it succeeded without a result or a change of
--   its max attempts; otherwise epoch, outcome, delay in µs (retry, overloaded: until eligible;
--   held: how long), max attempts (0 keeps them), result or '' for the one kept
--   An outcome is S succeeded, r retry, o overloaded, d dead, f failed, h held, R released,
--   m missed. Failed is dead and kept like a finished job: it cannot be replayed. After h follows
--   the cause of the hold, kept as it is. Overloaded is a retry that slows the flow. Missed is a
--   release of a job that came too late to leave at its stamp. A blank and the actual cost may end
--   the outcome of an attempt. That cost replaces the one which the departure was charged for.
-- Reply
--   now, and a text of a digit per job: 1 settled, 2 repeated, 3 stale, 4 settled or repeated, and
--   the job is dead because the hold cost its last attempt, 5 settled, and the pool is charged for
--   less than the actual cost: for its max cost
-- Derived keys: flow queue later returned lines job idem done dead expires outbox unlock tenants
--   flows wait ready reserve kept
-- Channels: wake ended

--! include record clock turn pool policy bucket stored flow answered filing finish kept

local JOB_ARGS, PLAIN = 5, 83 -- S
local LATE = 2000000 -- µs for which a flow counts as late after a job of it missed its stamp
local SETTLED, REPEATED, STALE, DIED, CUT = '1', '2', '3', '4', '5'
clock_load(ARGV[1])
local horizon = tonumber(ARGV[2])
retention_of(ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7])
local kept_most = ARGV[8] ~= '' and ARGV[8] + 0
retention.kept = kept_most

local function job_whole(raw)
  local j = job_read(raw)
  if j then
    finish_reads(j)
  end
  return j
end

-- Read.
local flows, touched, jobs, ids, names, whole = {}, {}, {}, {}, {}, {}
local new_bytes = {} -- by flow, of the records of forwarded requests that may end
local args_at, next_at = {}, 9 -- where in ARGV the settlement of a job begins
-- Until retune has reached all flows after a change of policies, the index of due flows may be
-- wrong.
local all_obey = clock.looked == '0'
local id_at = #PREFIX + 5
local reach = { KEYS[2], KEYS[3], KEYS[4], KEYS[5] }
for k = 6, #KEYS do
  local key = KEYS[k]
  local id = sub(key, id_at)
  local plain = byte(ARGV[next_at]) == PLAIN
  ids[k], args_at[k] = id, next_at
  local succeeds = not kept_most and (plain or ARGV[next_at + 1] == 'S')
  next_at = next_at + (plain and 1 or JOB_ARGS)
  local j = jobs[id]
  if j == nil or j and not succeeds and not j.seq then -- job_succeeding reads no sequence
    local raw = redis.call('GETRANGE', key, '0', UP_TO_PAYLOAD)
    j = succeeds and job_succeeding(raw) or job_whole(raw) or false
    if j and j.state == 'l' then -- the flow of any other is not needed, and may be forgotten
      local name = j.flow
      if whole[name] == nil then
        whole[name] = not all_obey
        names[#names + 1] = name
      end
      whole[name] = whole[name] or j.seq ~= nil
      if kept_most then
        local result = math.max(j.result, plain and 0 or #ARGV[next_at - 1])
        new_bytes[name] = (new_bytes[name] or 0) + RECORD_BYTES + j.prefix + result
      end
      if j.epoch > 1 then
        reach[#reach + 1] = PREFIX .. 'returned:' .. name
      end
    end
    jobs[id] = j
  end
end

local COUNTED = 6
local COUNTS = { 'running', 'succeeded', 'live', 'answers', 'answers_before', 'answers_at', 'depth', 'turn', 'class' }

-- flow_counts reads the counts of a flow that change when its jobs succeed. It returns nil if the
-- flow's place in the index of due flows may change, too. due is that place, if it has one.
local function flow_counts(name, due)
  local key = PREFIX .. 'flow:' .. name
  local v = redis.call('HMGET', key, unpack(COUNTS))
  local filed_in, pool = string.match(v[8] or '', '^([+-])(%S+)')
  if not v[1] or not (due or v[7] == '0' or filed_in == '+') then
    return nil
  end
  reach[#reach + 1] = PREFIX .. 'done:' .. name
  numbers(v, COUNTED)
  return {
    name = name, key = key, running = v[1], succeeded = v[2], live = v[3], answers = v[4],
    answers_before = v[5], answers_at = v[6], was = v,
    due = due and tonumber(due), counts = true, class = v[9] or nil, pool = pool and pool_of(pool, reach),
  }
end

local function flow_whole(name)
  local f = flow_load(name, nil, reach)
  flow_known(f)
  flow_reach(f)
  f.later_before = later_known(f)
  if kept_most then
    local most = math.min(kept_most, f.policy.capacity_bytes > 0 and f.policy.capacity_bytes or kept_most)
    kept_read(f, most, new_bytes[name] or 0, reach)
  end
  return f
end

local dues = names[1] and redis.call('ZMSCORE', KEYS[2], unpack(names))
for i = 1, #names do
  local name = names[i]
  flows[name] = not whole[name] and flow_counts(name, dues[i]) or flow_whole(name)
end
in_parts('EXISTS', KEYS[1], reach, 1)

-- Write.
unlock()

local ended = {} -- ids of the leases

-- hold_for holds a flow or a pool, and stores the cause of the hold that ends last.
local function hold_for(f, till, cause)
  if till >= f.held then
    redis.call('HSET', f.key, 'cause', cause == '' and '0' or cause)
  end
  hold(f, till)
end

-- correct_in_pool replaces the cost that the pool was charged for, and the turn of the flow.
local function correct_in_pool(f, j, cost)
  local p, idle = f.pool, j.stamp < f.ready
  local before, after = pooling.charge_of(p, j.cost, j.stamp), pooling.charge_of(p, cost, j.stamp)
  if after > before then
    after = pooling.exceed(f, before, after, correct)
  else
    correct(p, before, after)
  end
  pooling.correct(f, before, math.max(after, math.ceil(before / LEAST_APART)), idle) -- shaper.TurnCost
end

-- apply settles a current lease. It returns whether the actual cost exceeds what the pool is
-- charged for.
local function apply(id, outcome, cause, cost, delay, most, result, j, f)
  local dead, again, cut = outcome == 'd' or outcome == 'f', outcome == 'r' or outcome == 'o', false
  if most > 0 then
    j.max = most
  end
  if outcome == 'S' or again or dead then
    j.attempts = j.attempts + 1
    dead = dead or (again and j.attempts >= j.max)
  end
  if outcome == 'o' then
    local whole = f.pool and select(2, pooling.max_hold(f.pool))
    if not whole then
      refuse(f)
    end
    if whole then
      refuse(f.pool)
    elseif f.pool then
      refuse_in(f.pool, party_of(f))
    end
  end
  if cost then
    correct(f, j.cost, cost)
    if f.pool then
      cut = cost > pooling.cost_of(f.pool.policy)
      correct_in_pool(f, j, cost)
    end
  end
  j.outcome = outcome
  ended[#ended + 1] = id
  run(f, -1)
  if outcome == 'h' then
    local alone, till = true, 0 -- whether the flow is held, until when the pool
    if f.pool and sub(cause, 1, 11) == 'retry_after' then
      if not select(2, pooling.max_hold(f.pool)) then
        refuse_in(f.pool, party_of(f))
      end
      alone, till = answer(f.pool, party_of(f), delay)
    end
    if till > 0 then
      f.pool.probe = alone and now or 0
      held_anew(f.pool)
      hold_for(f.pool, till, cause)
    end
    if alone then
      hold_for(f, now + delay, cause)
    end
    dead = charge_free(j)
  end
  if dead then
    f.dead = f.dead + 1
    finish(id, j, f, 'd', result)
  elseif outcome == 'S' then
    f.succeeded = f.succeeded + 1
    if f.pool and watched(f.pool, j.stamp) then
      succeeded(f, j.stamp)
    end
    finish(id, j, f, 'S', result)
  elseif again then
    retry_later(id, j, f, delay, result)
  else
    if outcome == 'm' then
      hinder(f, 'late', now + LATE)
    end
    if outcome ~= 'h' then
      refund(f, j.stamp, j.cost)
      if f.pool then
        refund(f.pool, j.stamp, pooling.charge_of(f.pool, j.cost, j.stamp))
        pooling.correct(f, pooling.charge_of(f.pool, cost or j.cost, j.stamp), 0, j.stamp < f.ready)
      end
      leave(f, -1)
    end
    keep_result(id, j, f, result)
    give_back(id, j, f)
  end
  return cut
end

-- succeed does what apply and finish do, for a job that job_succeeding has read. Most jobs end so.
local function succeed(key, id, j, f, most, result)
  local raw = j.raw
  ended[#ended + 1] = id
  if j.epoch > 1 then
    redis.call('ZREM', PREFIX .. 'returned:' .. j.flow, id)
  end
  f.succeeded = f.succeeded + 1
  local p = f.pool
  if p and (p.watched > 0 or p.pauses) and watched(p, n56(raw, STAMP_AT)) then
    succeeded(f, n56(raw, STAMP_AT))
  end
  run(f, -1)
  -- Bytes of the result, and before it.
  local kept, text = n24(raw, RESULT_AT), j.prefix + n32(raw, PAYLOAD_AT)
  if kept > 0 and result == '' then
    result = redis.call('GETRANGE', key, text, text + kept - 1)
  end
  j.state, j.outcome, j.attempts = 'S', 'S', j.attempts + 1
  ended_now = ended_now or u56(now) .. ZERO7
  local record = job_ended(j, ended_now, result, most)
  redis.call('SET', key, record, 'EX', expiry)
  f.gone, f.kept = (f.gone or 0) + RECORD_BYTES + text + kept, (f.kept or 0) + RECORD_BYTES + #record
  f.ended = f.ended or {}
  f.ended[#f.ended + 1] = id
  publish('ended:' .. id, 'S')
end

local codes = {}
for k = 6, #KEYS do
  local a, id = args_at[k], ids[k]
  local first, j = ARGV[a], jobs[id]
  local epoch, outcome, delay, most, result
  if byte(first) == PLAIN then
    epoch, outcome, delay, most, result = first == 'S1' and 1 or sub(first, 2) + 0, 'S', 0, 0, ''
  else
    epoch, outcome, delay, most, result = first + 0, sub(ARGV[a + 1], 1, 1), ARGV[a + 2] + 0, ARGV[a + 3] + 0, ARGV[a + 4]
  end
  if not j then
    codes[k - 5] = STALE
  elseif j.state == 'l' and j.epoch == epoch then
    local f, cut = flows[j.flow], false
    if not j.seq then
      succeed(KEYS[k], id, j, f, most, result)
    else
      local cause, cost
      if byte(first) ~= PLAIN then
        cause, cost = string.match(ARGV[a + 1], '^.(%S*) ?(%d*)$')
      end
      cut = apply(id, outcome, cause, tonumber(cost), delay, most, result, j, f)
    end
    if not f.touched then
      f.touched = true
      touched[#touched + 1] = f
    end
    codes[k - 5] = outcome == 'h' and j.state == 'd' and DIED or cut and CUT or SETTLED
  else
    -- While a job is leased again, its last outcome is that of the lease before.
    local settled = j.state == 'l' and j.epoch - 1 or j.epoch
    if settled ~= epoch or j.outcome ~= outcome then
      codes[k - 5] = STALE
    else
      codes[k - 5] = outcome == 'h' and j.state == 'd' and DIED or REPEATED
    end
  end
end

if #ended > 0 then
  redis.call('ZREM', KEYS[4], unpack(ended))
end
for i = 1, #touched do
  local f = touched[i]
  finish_save(f)
  if kept_most then
    kept_save(f)
  end
  if f.gone then
    stored_add(f, 'live', -f.gone)
    aged_add(f, ANSWERS, retention.succeeded * 1000000, f.kept)
  end
  if f.counts then
    redis.call('HSET', f.key, unpack(changed_numbers({}, COUNTS, 1, COUNTED, f, f.was)))
    if f.due then
      wake_for(f.due, horizon)
    end
  else
    due_save(f, f.later_before, horizon)
    flow_save(f)
  end
end
if #touched > 0 then
  all_answered_save()
  due_flush(horizon, true)
end
return { now, table.concat(codes) }
