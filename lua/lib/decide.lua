-- decide: decides on the jobs of a call of admit, in memory only.

--! needs record clock bucket flow admission pool_full batch

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

-- answer_job appends the numbers of a job to the answer, and details if an outcome is given.
local function answer_job(f, position, start, outcome, state, after, created, known)
  local v, n = decisions, written
  v[n + 1], v[n + 2], v[n + 3], v[n + 4] = f.depth, f.bytes, position, start
  written = n + 4
  if outcome then
    details[#details + 1] = { written / 4, outcome, state or '', after or 0, created or 0, known or '' }
  end
end

-- refuse_job answers a job that is refused.
local function refuse_job(f, outcome, start, after, text)
  answer_job(f, 0, start, outcome, '', after, 0, text)
  -- Nothing is stored of a tenant that is refused and not in the index, nor of a flow that has
  -- never had a job and may not have this one: else strangers fill the index.
  local forbidden = outcome == DENIED or outcome == TYPE_DENIED
  if not (f.unknown or f.fresh and forbidden and not f.touched) then
    f.rejected, f.touched, clock.rejected = f.rejected + 1, true, clock.rejected + 1
  end
  refusal = refusal or f
end

-- admitted_before answers a job that an earlier sending of this call has admitted.
local function admitted_before(f, id, j)
  local position, start = estimate(f, id, j)
  answer_job(f, position, start, ADMITTED, j.state, 0, j.created)
end

-- repeated answers a job whose idempotency key exists.
local function repeated(f, known, print)
  local same = string.match(known, '^%S+ (%S+)') == print
  answer_job(f, 0, 0, same and REPLAYED or REUSED, '', 0, 0, known)
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
local function outcome_of(f, payload, delay, wait, cost, kind)
  local size, bytes = asked_of(f, payload)
  local forbidden = forbids(f.policy, kind)
  if forbidden then
    return forbidden, 0, 0
  end
  if f.max_cost and cost > f.max_cost then
    local outcome = f.cost_of_pool and TOO_COSTLY_IN_POOL or TOO_COSTLY
    return outcome, 0, 0, format('%d %d', cost, f.max_cost)
  end
  local drained = f.stopped and 0 or start_of(f, f.queued, f.cost)
  local start = drained
  if delay > 0 and drained ~= 0 then
    start = math.max(drained, now + delay)
  end
  local p, of = f.pool, nil
  local refusal, departures = exceeds(f, size, bytes)
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
    local soonest = f.estimated and now + math.floor((sure - now) / LEAST_APART) or sure
    if sure == 0 or math.max(soonest, now + delay) > now + wait * 1000 then
      return UNREACHABLE, sure ~= 0 and math.max(sure, now + delay) or 0, 0
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

-- decide answers the job whose keys begin at k, and collects the writes for it.
local function decide(k, f, delay, wait, hash, print, kind, rest)
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
  local outcome, start, after, text = outcome_of(f, payload, delay, wait, f.max_cost and n32(rest, 1), kind)
  if outcome ~= ADMITTED then
    return refuse_job(f, outcome, start, after, text)
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
  answer_job(f, position, start, delay > 0 and ADMITTED, state)
  if idem_key then
    made[idem_key] = id .. ' ' .. print
    write(f, idem_key, made[idem_key], KEY_BYTES + #f.name)
  end
end
