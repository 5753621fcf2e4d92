-- lease_end: ends the leases of settle.

--! needs record clock bucket flow trial answered filing pool_settle finish

local LATE = 2000000 -- µs for which a flow counts as late after a job of it missed its stamp

local ended = {} -- ids of the leases

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
    if f.pool then
      refuse_pooled(f, j.stamp)
    else
      refuse(f)
    end
  end
  if cost then
    correct(f, j.cost, cost)
    cut = f.pool and correct_in_pool(f, j, cost) or false
  end
  j.outcome = outcome
  ended[#ended + 1] = id
  run(f, -1)
  if outcome == 'h' then
    if not (f.pool and sub(cause, 1, 11) == 'retry_after') or hold_pool(f, j.stamp, delay, cause) then
      hold_for(f, now + delay, cause)
    end
    -- A job that waits for its route's credentials spends no attempt, however long. The client of a
    -- forwarded request waits, so its holds count. One that waits for a key spends none either.
    dead = sub(cause, 1, 6) ~= 'codec:' and (retention.kept or not waits_for_credentials(cause)) and charge_free(j)
  end
  if outcome == 'x' then
    dead = charge_free(j)
  end
  if dead then
    f.dead = f.dead + 1
    finish(id, j, f, 'd', result)
  elseif outcome == 'S' then
    f.succeeded = f.succeeded + 1
    if f.pool and is_watched(f.pool, j.stamp) then
      success_seen(f, j.stamp)
    end
    finish(id, j, f, 'S', result)
  elseif again then
    retry_later(id, j, f, delay, result)
  else
    if outcome == 'm' then
      hinder(f, 'late', now + LATE)
    end
    if outcome == 'R' or outcome == 'm' then
      refund(f, j.stamp, j.cost)
      if f.pool then
        refund_in_pool(f, j, cost or j.cost)
      end
      count_departed(f, -1)
    end
    keep_result(id, j, f, result)
    give_back(id, j, f)
  end
  return cut
end

-- succeed does what apply and finish do, for a job that job_succeeding has read. Most jobs end so,
-- and by those functions it takes 12 % more of Redis's instructions for a job.
local function succeed(key, id, j, f, most, result)
  local raw = j.raw
  ended[#ended + 1] = id
  if j.epoch > 1 then
    redis.call('ZREM', PREFIX .. 'returned:' .. j.flow, id)
  end
  f.succeeded = f.succeeded + 1
  local p = f.pool
  if p and (p.watched > 0 or p.pauses) and is_watched(p, n56(raw, STAMP_AT)) then
    success_seen(f, n56(raw, STAMP_AT))
  end
  run(f, -1)
  local before, payload = n24(raw, RESULT_AT), n32(raw, PAYLOAD_AT) -- bytes of the result so far
  if before > 0 and result == '' and not j.aside then
    local text = j.prefix + payload
    result = redis.call('GETRANGE', key, text, text + before - 1)
  end
  j.state, j.outcome, j.attempts = 'S', 'S', j.attempts + 1
  ended_now = ended_now or u56(now) .. ZERO7
  local bytes = job_ended(key, j, ended_now, result, most, expiry)
  f.freed = (f.freed or 0) + record_bytes(j.prefix, payload, before)
  f.answered_bytes = (f.answered_bytes or 0) + RECORD_BYTES + bytes
  f.ended = f.ended or {}
  f.ended[#f.ended + 1] = id
  publish('ended:' .. id, 'S')
end
