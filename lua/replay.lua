-- replay: queue a dead job again.
--
-- Guarantee: the job is admitted like a new one, at the end of the queue (invariants 1 and 6). Its
-- attempts and its max wait start anew, its epoch goes on. A pending callback waits for the new
-- end. The same call sent twice gets the same answer, because the record keeps its tag.
--
-- KEYS
--   1 clock   2 due   3 expires   4 job   5 outbox
-- ARGV
--   1 instant in µs, or '' for the server's
--   2 tenant as in keys
--   3 horizon in µs
--   4 call tag, 1 to 2^32 - 1
--   5 max attempts   6, 7 most dead letters of a flow, and of how many bytes
--   8 hash of the job's type
--   9 tier that the client's credential claims now; absent: the one claimed last, for an operator
-- Reply
--   now, then 0 no such job of this tenant, 3 not dead, or 1 and: outcome as of admit, position,
--   estimated start, depth, capacity, retry after in µs, limit and period in µs of the strictest
--   pace, bytes, capacity in bytes, bytes of the payload, and where there is no capacity 0 if the
--   job never fits, 1 if retry after is exact, 2 if it is an estimate
-- Derived keys: flow queue later lines idem dead done job tenants flows wait ready reserve
-- Channels: wake

--! needs record clock stored flow filing admission pool_full

local ABSENT, DONE, CONFLICT = 0, 1, 3
clock_load(ARGV[1])
local horizon, tag = tonumber(ARGV[3]), tonumber(ARGV[4])
local id = string.sub(KEYS[4], #PREFIX + 5)
local j = job_read(redis.call('GETRANGE', KEYS[4], '0', UP_TO_PAYLOAD))
if not j or tenant_of(j.flow) ~= ARGV[2] then
  return { now, ABSENT }
end
local f = flow_load(j.flow, ARGV[9])
if f.fresh then -- forgotten: the dead letter is past its retention
  return { now, ABSENT }
end
local p = f.policy
local queue, dead = PREFIX .. 'queue:' .. f.name, PREFIX .. 'dead:' .. f.name
local function answer(outcome, position, start, after, of, fits)
  of = of or f -- what is full
  local bound, pace = of.policy, p.drain
  return { now, DONE, outcome, position, start, of.depth, bound.capacity, after, pace.limit, pace.period, of.bytes, bound.capacity_bytes,
    j.payload, fits or 0 }
end
if j.tag == tag then
  local rank = redis.call('ZRANK', queue, id)
  if not rank then
    return answer(ADMITTED, 0, 0, 0)
  end
  local position, start = place_of(f, rank)
  return answer(ADMITTED, position, start, 0)
end
if not is_dead_letter(j) then
  return { now, CONFLICT }
end
redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[5], queue, dead, PREFIX .. 'later:' .. f.name)
local idem_key = PREFIX .. 'idem:' .. tenant_of(f.name) .. ':' .. j.idem
local known = j.idem ~= '' and redis.call('GET', idem_key)
known = known and names_job(known, id)
local later = later_known(f)
local forbidden = forbids(p, ARGV[8]) or p.draining and DRAINING
if forbidden then
  return answer(forbidden, 0, 0, 0)
end
-- drained is the instant at which all queued jobs have left, 0 when unknown.
local function drained()
  return paused(f) and 0 or start_of(f, f.queued, f.cost)
end
local refusal, departures = exceeds(f, 1, j.payload)
local of, by = f, f
if f.pool then
  f.pool.sampled = f
  local outcome, left, what = full_in_pool(f, 1, j.payload, 1, j.payload)
  if outcome and (not refusal or departures and not left) then -- never is the better answer
    refusal, departures, of, by = outcome, left, what, f.pool
  end
end
if refusal then
  local after, exact = retry_after(by, departures)
  return answer(refusal, 0, drained(), after, of, not departures and 0 or exact and refusal == FULL and 1 or 2)
end
if slots_of(f) or f.pool and slots_of(f.pool) then
  took_of(f) -- before the first write
end

clock_save() -- first, because Redis refuses this one at maxmemory: replay is an intake
redis.call('ZREM', dead, id)
redis.call('ZREM', KEYS[5], id)
dead_left(f, j, tonumber(ARGV[6]), tonumber(ARGV[7]))
local start = drained() -- now, for a flow that had too many dead letters may leave again
f.seq = f.seq + 1
j.seq, j.state, j.at, j.attempts, j.free, j.tag, j.max = f.seq, 'q', now, 0, 0, tag, tonumber(ARGV[5])
if j.wait > 0 then
  j.deadline = now + j.wait * 1000
  redis.call('ZADD', KEYS[3], j.deadline, id)
  wake_for(j.deadline + horizon, horizon)
end
enqueue(f, j.cost)
take_place(f, j)
stored_add(f, 'live', job_bytes(j))
redis.call('SETRANGE', KEYS[4], 0, job_head(j))
redis.call('PERSIST', KEYS[4])
redis.call('ZADD', queue, j.seq, id)
if known then
  redis.call('SET', idem_key, known)
end
due_save(f, later, horizon)
flow_save(f)
due_flush(horizon)
clock_save()
return answer(ADMITTED, f.queued, start, 0)
