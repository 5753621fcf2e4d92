-- plan: which jobs of a flow leave now.

--! needs record clock bucket flow finish poll

local FLOW_JOBS_MOST, PROMOTE_MOST = 250, 200
-- BYTES_MOST bounds the bytes of records that a poll reads. With four times as many, a worker that
-- took a burst of large payloads lost a tenth of the departures of others for two seconds. LITTLE
-- bytes of a flow count as none.
local BYTES_MOST, LITTLE = 1048576, 65536

-- Flows of full routes that a poll loads. Others go into the lines of their routes without being
-- loaded: thousands of them would keep the rest from being polled.
local LOOKS_MOST = 16
local line = { APART = 1000, ends = {} } -- µs; by route, see line.join
local bounds -- by route and by flow; nil without any
local regulars = {}
for i = 18, #ARGV, 2 do
  if ARGV[i + 1] == '' then
    regulars[#regulars + 1] = ARGV[i]
  else
    bounds = bounds or {}
    bounds[ARGV[i]] = tonumber(ARGV[i + 1])
  end
end

-- job_of_raw decodes a job for plan. A job whose record was deleted or evicted must not stop its
-- flow: it is dropped.
local function job_of_raw(raw, id, f)
  if not raw then
    exists(PREFIX .. 'job:' .. id)
  end
  local j = job_read(raw) or { missing = true, state = 'q', at = 0, seq = 0, cost = 1, payload = 0,
    deadline = 0, flow = f.name }
  j.id, j.record = id, raw
  return j
end

-- job_waiting decodes what plan and carry_out need of a queued job that has no deadline, which most
-- are; nil for any other. To decode all of each takes 5 % more of Redis's instructions for a job.
local function job_waiting(raw, id)
  if raw and #raw > HEAD and sub(raw, DEADLINE_AT, DEADLINE_END) == ZERO7 then
    return waiting_read(raw, id)
  end
end

-- How many jobs of all flows a poll may still promote, and drop. A flow may take half of what is
-- left, and always one, so that none keeps the others from leaving.
local promote_left, drop_left = PROMOTE_MOST, EXPIRE_MOST

-- half is what a flow may take of such a number.
local function half(left)
  return math.max(1, math.ceil(left / 2))
end

-- promotable is the number of jobs of a flow that the poll may still promote.
local function promotable(f)
  f.promotes = f.promotes or half(promote_left)
  return f.promotes - #f.promote
end

-- What a poll may still read of records, in bytes. A flow whose waiting jobs may exceed it has only
-- the heads of their records read, and its next job leaves if the rest fits. One larger job of each
-- poll does in any case.
local HEAD_READ, bytes_left, large = UP_TO_PAYLOAD + 1, BYTES_MOST, false

-- record_for reads the record of a job of a flow, or only its head.
local function record_for(f, id)
  if f.bytes > bytes_left then
    local raw = redis.pcall('GETRANGE', JOB .. id, '0', UP_TO_PAYLOAD)
    if type(raw) == 'string' then
      return raw ~= '' and raw
    end
  end
  local raw = record_of(id)
  bytes_left = bytes_left - (raw and #raw or 0)
  return raw
end

-- overdue reports whether a job is dropped at a stamp.
local function overdue(j, stamp)
  return j.missing or (j.deadline or 0) > 0 and j.deadline < stamp
end

-- stays reports whether a job that is next must wait for a later poll: the flow has dropped as many
-- as it may, or the rest of the record does not fit. It reads that rest. late is what overdue has
-- returned. Callers do not call it for a job that is neither overdue nor long, as most are: that is
-- 2 % of a poll.
local function stays(f, j, late)
  if late then
    f.drops = f.drops or half(drop_left)
    return #f.drop >= f.drops
  end
  local size = redis.call('STRLEN', JOB .. j.id)
  if size > bytes_left and large then
    return true
  end
  j.record, bytes_left, large = record_of(j.id), bytes_left - size, true
  return false
end

-- promote takes the scheduled and retrying jobs of a flow that are eligible by the stamp from their
-- index, into waiting by their sequence. It begins at a place in the index and returns where to go
-- on.
local function promote(f, waiting, stamp, from)
  local later = PREFIX .. 'later:' .. f.name
  local due = redis.call('ZRANGEBYSCORE', later, '-inf', stamp, 'WITHSCORES', 'LIMIT', from, promotable(f))
  for i = 1, #due, 2 do
    local j = job_of_raw(record_for(f, due[i]), due[i], f)
    j.at, j.promoted = tonumber(due[i + 1]), true
    if j.state == 's' then
      f.seq = f.seq + 1
      j.seq = f.seq
    end
    if f.queued == 0 then
      f.ready = math.max(f.ready, j.at)
    end
    count_queued(f, j.cost)
    f.promote[#f.promote + 1] = j
    local place = #waiting + 1
    while place > 1 and waiting[place - 1].seq > j.seq do
      place = place - 1
    end
    table.insert(waiting, place, j)
  end
  from, promote_left = from + #due / 2, promote_left - #due / 2
  f.later_before = tonumber(redis.call('ZRANGE', later, from, from, 'WITHSCORES')[2])
  return from
end

-- slots is the most jobs that the paces may let leave up to now + horizon: a whole burst where the
-- TAT is now, and one less for each interval that it is ahead.
local function slots(f)
  local most = FLOW_JOBS_MOST
  for i = 1, #f.cells do
    local c = f.cells[i]
    local span = now + horizon + 1 - math.max(c.tat, from - SLACK)
    most = math.min(most, math.max(0, math.floor(span * c.limit / c.period) + c.burst))
  end
  return most
end

-- queue_ids reads the ids of the first jobs of a queue, each followed by its sequence if parts is
-- 2.
local function queue_ids(f, most, parts)
  local queue, last = PREFIX .. 'queue:' .. f.name, format('%d', most - 1)
  if parts == 2 then
    return redis.call('ZRANGE', queue, '0', last, 'WITHSCORES')
  end
  return redis.call('ZRANGE', queue, '0', last)
end

-- records_of reads the records of the first most ids of a flow, in one command. It reads none of a
-- flow whose records may be too many bytes.
local function records_of(f, ids, most)
  local keys = {}
  for i = 1, f.bytes <= bytes_left and math.min(#ids, most) or 0 do
    keys[i] = JOB .. ids[i]
  end
  local raws = keys[2] and redis.call('MGET', unpack(keys)) or {}
  for i = 1, f.bytes > LITTLE and #raws or 0 do
    bytes_left = bytes_left - (raws[i] and #raws[i] or 0)
  end
  return raws
end

-- share_of is the number of jobs of the flow that the worker's bounds let leave; nil if unbounded.
local function share_of(f)
  local route = bounds[route_of(f.name)]
  return route and math.min(route, math.ceil((3 * route - (bounds[f.name] or 0)) / 4))
end

-- line.join returns the instant to which a flow of a route without a free slot is put off, at least
-- the given one. Such flows line up, each line.APART behind the one before, so that thousands of
-- them take few polls. The field line:ROUTE of the clock holds the instant of the last one.
function line.join(route, least)
  local last = line.ends[route] or tonumber(redis.call('HGET', KEYS[1], 'line:' .. route)) or 0
  line.ends[route] = math.max(least, last + line.APART)
  return line.ends[route]
end

-- line.no_slot reports whether the route of a flow has no free slot.
function line.no_slot(name)
  local slots = bounds and bounds[route_of(name)]
  return slots and slots <= 0
end

-- line_up puts a flow off that may take no slot of the worker.
local function line_up(f)
  put_off(f, horizon)
  if line.no_slot(f.name) then
    f.ready = line.join(route_of(f.name), f.ready)
  end
end

-- plan_begin prepares a flow for a plan, unless that was done.
local function plan_begin(f)
  if not f.leaving then
    f.leaving, f.drop, f.promote = {}, {}, {}
  end
end

-- take removes a job that leaves or is dropped from the counts of its flow. It returns whether the
-- job may leave. late is what overdue has returned.
local function take(f, j, late)
  dequeue(f, j.cost)
  leave_place(f, j)
  if not late then
    return true
  end
  if not j.missing then
    attempt('idempotency key of job ' .. j.id, finish_reads, j)
  end
  drop_left = drop_left - 1
  f.drop[#f.drop + 1] = j
  return false
end

-- plan decides, without writing, which jobs of a flow leave now: f.leaving, f.drop (overdue) and
-- f.promote. True if more jobs may be ready to leave.
local function plan(f, budget)
  local p = f.policy
  plan_begin(f)
  if p.paused then
    return false
  end
  local most = math.min(budget, FLOW_JOBS_MOST)
  if p.concurrency > 0 then
    most = math.min(most, p.concurrency - f.running)
  end
  if most <= 0 then
    return false
  end
  local share = bounds and share_of(f)
  if share then
    if share <= 0 then
      line_up(f)
      f.put_off, reply[PUT_OFF] = 'upstream', reply[PUT_OFF] + 1
      return false
    end
    most = math.min(most, share)
  end
  local paced = slots(f)
  local wide = math.min(most, paced + 1) -- one more than the paces let leave
  local parts = f.later_before and 2 or 1 -- sequences are needed only beside promoted jobs
  local window = queue_ids(f, wide, parts)
  local seen = #window / parts
  if seen < wide and seen < f.queued then
    exists(PREFIX .. 'queue:' .. f.name)
    error('DAMAGED flow ' .. f.name)
  end
  local queued = f.queued -- before anything is dropped or promoted
  local all_seen = seen < wide or seen == queued
  local at, waiting, promoted_from = 1, {}, 0
  local raws = parts == 1 and records_of(f, window, paced) or {}
  while #f.leaving < most do
    if at > #window and not all_seen then
      if wide == most then
        return true
      end
      wide = most -- some took no slot
      window, raws = queue_ids(f, wide, parts), {}
      all_seen = #window / parts < wide or #window / parts == queued
    end
    local from_window = at <= #window and not (waiting[1] and waiting[1].seq < tonumber(window[at + 1]))
    local eligible = 0
    if not from_window and not waiting[1] then
      if not f.later_before then
        return false
      end
      if promotable(f) <= 0 then
        return true
      end
      eligible = f.later_before
    end
    local stamp = stamp_of(f, eligible, from)
    if stamp > now + horizon then
      return false
    end
    if f.later_before and f.later_before <= stamp and promotable(f) > 0 then
      promoted_from = promote(f, waiting, stamp, promoted_from)
    else
      local j
      if from_window then
        local id, raw = window[at], raws[at]
        if raw == nil then
          raw = record_for(f, id)
        end
        j = job_waiting(raw, id) or job_of_raw(raw, id, f)
      else
        j = waiting[1]
      end
      if j.at >= stamp then
        stamp = stamp_of(f, j.at, from) -- else it is the same
        if stamp > now + horizon then
          return false
        end
      end
      local late = overdue(j, stamp)
      if (late or #j.record == HEAD_READ) and stays(f, j, late) then
        return true
      end
      if from_window then
        at = at + parts
      else
        table.remove(waiting, 1)
        j.taken = true
      end
      if take(f, j, late) then
        depart(f, stamp, 1, j.cost)
        j.stamp = stamp
        f.leaving[#f.leaving + 1] = j
      end
    end
  end
  return true
end
