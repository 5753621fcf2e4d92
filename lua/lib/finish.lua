-- finish: what every terminal state has in common.

--! needs record clock stored flow filing

local FREE_LEASES = 20 -- shaper.FreeLeases
local CALLBACK_BYTES = 1024 -- that the task of a callback takes beyond its record, about

local DONE_KEPT = 1000 -- recent terminal ids of a flow

-- retention is in whole seconds for finished jobs, dead letters, and idempotency keys after the
-- job. dead_capacity and dead_bytes bound the dead letters of a flow. kept is set while forwarded
-- requests end: kept.lua counts their records. expiry is that of finished jobs as text.
local retention, expiry

local function retention_of(succeeded, dead, idempotency, dead_capacity, dead_bytes)
  expiry = succeeded
  retention = {
    succeeded = tonumber(succeeded), dead = tonumber(dead), idempotency = tonumber(idempotency),
    dead_capacity = tonumber(dead_capacity), dead_bytes = tonumber(dead_bytes),
  }
end

-- job_store writes a record with another result: the whole of it, because an append would make
-- Redis allocate twice the bytes, unless the payload is large.
local function job_store(key, j, result)
  if j.payload >= APPEND_FROM then -- what may remain of a longer result is never read
    j.result = #result
    redis.call('SETRANGE', key, '0', job_head(j))
    redis.call('SETRANGE', key, format('%d', j.prefix + j.payload), result)
    return
  end
  local payload = j.payload > 0 and redis.call('GETRANGE', key, j.prefix, j.prefix + j.payload - 1) or ''
  j.result = #result
  redis.call('SET', key, job_head(j) .. sub(j.raw, HEAD + 1, j.prefix) .. payload .. result)
end

-- dead_add lists a dead letter of the flow and counts its bytes. Those past retention leave the
-- list; their bytes are estimated by their part of the number.
local function dead_add(id, j, f)
  local dead, keep = PREFIX .. 'dead:' .. j.flow, retention.dead
  local gone = redis.call('ZREMRANGEBYSCORE', dead, '-inf', now - keep * 1000000)
  redis.call('ZADD', dead, now, id)
  redis.call('EXPIRE', dead, keep)
  local count = redis.call('ZCARD', dead)
  local before = count - 1 + gone
  local left = before > 0 and math.floor(f.dead_bytes * ((count - 1) / before)) or 0
  stored_add(f, 'dead_bytes', left - f.dead_bytes)
  stored_add(f, 'dead_bytes', job_bytes(j))
  if count >= retention.dead_capacity or f.dead_bytes >= retention.dead_bytes then
    f.full = tonumber(redis.call('ZRANGE', dead, 0, 0, 'WITHSCORES')[2]) + keep * 1000000
    f.ready = math.max(f.ready, f.full)
  end
end

local ended_now -- now and no deadline, encoded

-- Bytes of a record in Redis up to which it is sent with the news that a forwarded request has
-- ended, so that nobody need read it then. Forward mode adds an eighth less to an idle request.
local END_BYTES = 4096

-- flow_reach touches all keys of a flow, so that a slot in migration refuses the script before its
-- first write.
local function flow_reach(f)
  local name = f.name
  redis.call('EXISTS', KEYS[1], f.key, PREFIX .. 'lines:' .. tenant_of(name), PREFIX .. 'queue:' .. name,
    PREFIX .. 'later:' .. name,
    PREFIX .. 'done:' .. name, PREFIX .. 'dead:' .. name, PREFIX .. 'returned:' .. name)
end

-- finish_reads does the same for the idempotency key of a job that may end.
local function finish_reads(j)
  if j.idem ~= '' then
    local idem = PREFIX .. 'idem:' .. tenant_of(j.flow) .. ':' .. j.idem
    j.key = redis.call('GET', idem)
    if not j.key then
      exists(idem)
    end
  end
end

-- came_back stores since when a job that a worker gave back could have left. The instant of its
-- first return stays until the job has ended, so retries and holds do not restart its wait.
local function came_back(id, j)
  redis.call('ZADD', PREFIX .. 'returned:' .. j.flow, 'NX', format('%d', j.at), id)
end

-- finish ends a job of the flow in a terminal state at now. Its record keeps the result ('' keeps
-- the one it has) and loses the payload, unless the job is a dead letter. The record and
-- the idempotency key expire after their retention. Subscribers of the job are notified: by the
-- state or, of a forwarded request with a small answer, by the record. A job with
-- a callback goes to the outbox, and its record stays at least until it is handed over. A flow that
-- reaches the bounds of its dead letters stops until the oldest is past retention.
local function finish(id, j, f, state, result)
  local key, message = PREFIX .. 'job:' .. id, state
  local keep = retention.succeeded
  local called_back = asks_for_callback(j)
  if called_back then
    redis.call('ZADD', PREFIX .. 'outbox', now, id)
    wake_for(now, 0)
  end
  if j.epoch > (j.state == 'l' and 1 or 0) then -- it was leased before: came_back may have stored it
    redis.call('ZREM', PREFIX .. 'returned:' .. j.flow, id)
  end
  stored_add(f, 'live', -job_bytes(j))
  j.state, j.at, j.deadline = state, now, 0
  if state == 'd' then
    redis.call('HINCRBY', KEYS[1], 'dead', 1)
  end
  if is_dead_letter(j) then
    keep = retention.dead
    if result ~= '' then
      job_store(key, j, result)
    else
      redis.call('SETRANGE', key, 0, job_head(j))
    end
    if not called_back then
      redis.call('EXPIRE', key, keep)
    end
    dead_add(id, j, f)
  else
    result = (result ~= '' or j.aside) and result or result_of(key, j)
    j.payload, j.result = 0, j.aside or #result
    ended_now = ended_now or u56(now) .. ZERO7
    local bytes, front = job_ended(key, j, ended_now, result, j.max, called_back and '' or expiry)
    bytes = RECORD_BYTES + bytes
    if retention.kept then
      if bytes <= END_BYTES and not j.aside then
        message = front .. result
      end
      f.answered = f.answered or {}
      f.answered[#f.answered + 1] = format('%s %d', id, bytes)
    else
      aged_add(f, ANSWERS, keep * 1000000, bytes)
    end
    -- No rate bounds how many jobs end that have never left, and a callback may wait for a day.
    local longer = (called_back and j.epoch == 0 and CALLBACK_BYTES + bytes or 0) + key_bytes(j)
    if longer > 0 then
      aged_add(f, IDEMPOTENCY, math.max(keep, retention.idempotency) * 1000000, longer)
    end
    f.ended = f.ended or {}
    f.ended[#f.ended + 1] = id
  end
  local known = j.key and names_job(j.key, id)
  if known then -- it answers for the job when the job's own record is gone
    redis.call('SET', PREFIX .. 'idem:' .. tenant_of(j.flow) .. ':' .. j.idem,
      string.format('%s %s %.0f %.0f %d %d', known, state, j.created, now, j.attempts, j.max),
      'EX', math.max(keep, retention.idempotency))
  end
  publish('ended:' .. id, message)
end

-- finish_save lists the jobs of a flow that have ended among its recent ids.
local function finish_save(f)
  if f.ended then
    local done = PREFIX .. 'done:' .. f.name
    if redis.call('LPUSH', done, unpack(f.ended)) > DONE_KEPT then
      redis.call('LTRIM', done, 0, DONE_KEPT - 1)
    end
    redis.call('EXPIRE', done, retention.succeeded)
    f.ended = nil
  end
end

-- save_flows writes the flows of a list and files each under its next possible stamp. It wakes the
-- shard's owner if horizon is given.
local function save_flows(list, horizon)
  for i = 1, #list do
    finish_save(list[i])
    due_save(list[i], list[i].later_before, horizon)
    flow_save(list[i])
  end
  due_flush(horizon)
end

-- end_waiting ends a job before its delivery; nothing happens if it does not wait.
local function end_waiting(id, j, f, state)
  if j.state == 'q' then
    redis.call('ZREM', PREFIX .. 'queue:' .. f.name, id)
    dequeue(f, j.cost)
  elseif j.state == 's' or j.state == 'r' then
    redis.call('ZREM', PREFIX .. 'later:' .. f.name, id)
  else
    return
  end
  redis.call('ZREM', PREFIX .. 'expires', id)
  leave_place(f, j)
  f.later_before = later_head(f)
  finish(id, j, f, state, '')
end

-- give_back returns a leased job to the queue under its old sequence. It may leave from the same
-- instant on as before: its flow would lose its turn if the next slot of the pool is before now.
local function give_back(id, j, f)
  enqueue(f, j.cost)
  take_place(f, j)
  came_back(id, j)
  j.state = 'q'
  redis.call('SETRANGE', PREFIX .. 'job:' .. id, 0, job_head(j))
  redis.call('ZADD', PREFIX .. 'queue:' .. f.name, j.seq, id)
  if j.deadline > 0 then
    redis.call('ZADD', PREFIX .. 'expires', j.deadline, id)
  end
end

-- charge_free counts a hold or an expired lease. After FREE_LEASES of them each costs an attempt.
-- True when no attempt is left.
local function charge_free(j)
  if j.free < FREE_LEASES then
    j.free = j.free + 1
    return false
  end
  j.attempts = j.attempts + 1
  return j.attempts >= j.max
end

-- keep_result stores the result of a delivery of a job that goes on.
local function keep_result(id, j, f, result)
  if result ~= '' then
    local before = job_bytes(j)
    job_store(PREFIX .. 'job:' .. id, j, result)
    stored_add(f, 'live', job_bytes(j) - before)
  end
end

-- retry_later makes a leased job wait until delay has passed.
local function retry_later(id, j, f, delay, result)
  came_back(id, j)
  j.state, j.at = 'r', now + delay
  if result == '' then
    redis.call('SETRANGE', PREFIX .. 'job:' .. id, 0, job_head(j))
  end
  keep_result(id, j, f, result)
  redis.call('ZADD', PREFIX .. 'later:' .. f.name, j.at, id)
  if j.deadline > 0 then
    redis.call('ZADD', PREFIX .. 'expires', j.deadline, id)
  end
  f.later_before = math.min(f.later_before or j.at, j.at)
  take_place(f, j)
end
