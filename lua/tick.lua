-- tick: one look at a shard by one worker.
--
-- Guarantee: one call does one of these things, the first that there is to do: hand over again what an earlier call leased but
-- its worker never saw; take back expired leases; expire jobs that waited too long; lease what is stamped up to now + horizon, in order, within each flow's paces and cap (invariants 2, 3, 6), promoting
-- scheduled and retrying jobs that are eligible by the stamp being given; forget tenants idle for ten minutes. After the baseline has changed, calls also go through all flows and make them due, a part in each
-- call and beside leasing. Everything a call writes is read before its first write. A call that finds nothing to do writes nothing, unless the wall clock has been set back.
-- Each call carries the worker's counter and the counter of the last grant it has seen. A stored grant that it has not seen is handed
-- over again (invariant 7): unchanged while its first stamp of a flow is at most slack before now + lead, else stamped anew in order, or given back
-- to the queue if later stamps were given since, or if the flow has become too slow, held or paused for that.
--
-- A flow, job or tenant that cannot be read, because somebody changed its keys, is reported and set aside; the others go on.
--
-- KEYS
--   1 clock   2 due   3 expires   4 leases   5 grant   6 tenants   7 outbox
-- ARGV
--   1 instant in µs, or '' for the server's   2 counter   3 counter of the last grant seen   4 most jobs to lease
--   5 lease in µs   6 horizon in µs   7 sweep in µs   8 help: '0' keep, '1' raise, '2' clear   9 baseline
--   10, 11, 12 retention in s: of finished jobs, of dead letters, of idempotency keys   13, 14 most dead letters of a flow, and of how many bytes
--   15 '1' when the worker is not the shard's owner: what it plans is then no promise to look
--   16 '1' when the worker hands completions over: the reply then says whether there are any
--   17 lead in µs: the least time from now to a stamp, so that the answer reaches the worker before it
--   then, where the worker bounds what it leases, pairs of a name and a number: a route and how many more places its jobs
--   may take; a flow of such a route and how many places it holds. A flow may hold up to three times the places that it
--   leaves to its route. One that may lease nothing is put off.
-- Reply
--   now, next instant at which something is due (0 none), 1 if work was left, 1 if help is asked for, counter of the grant (0 none),
--   1 if completions are to be handed over, the number of the lot of jobs in the order of lots (0 none),
--   what is damaged, a line for each item with its error,
--   where the worker bounds what it leases: how many flows were put off,
--   then per leased job: id, stamp, and its record, before it was leased or, when it is handed over again, with the lease it has. The lease
--   ends its time after the stamp, or after now if that is later
-- Derived keys: flow queue later returned policy flows job idem done dead expires outbox unlock tenants
-- Channels: sluice:wake sluice:done

--! include record clock policy bucket stored flow finish
--! rarely set_aside redeliver take_back expire_all scan_flows scan_write job_of_raw promote carry_out_seldom forget_idle policy_said retune_anew

local SWEEP_MOST, EXPIRE_MOST, FLOWS_MOST, FLOW_JOBS_MOST, PROMOTE_MOST, IDLE_MOST, TENANTS_MOST = 100, 200, 64, 250, 200, 64, 200
local JOB = PREFIX .. 'job:'
local ASIDE = 10000000 -- µs for which an item that cannot be worked with is set aside
local IDLE = 600000000 -- µs until an idle tenant is forgotten
local LEFT_MOST = 65536 -- bytes of answers and keys that an idle tenant leaves without being remembered for them
local OVERRIDDEN = 86400000000 -- µs until an idle tenant with API overrides is looked at again
local HINDERED = 1000000 -- µs for which a flow counts as hindered after it could have been leased again

clock_load(ARGV[1])
local counter, seen, most = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local lease, horizon, sweep, help = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
local baseline = ARGV[9]
retention_of(ARGV[10], ARGV[11], ARGV[12], ARGV[13], ARGV[14])
local helper, hands_over = ARGV[15] == '1', ARGV[16] == '1'
local from = now + tonumber(ARGV[17]) -- the earliest stamp that this call gives
local bounds -- by route and by flow; nil without any
for i = 18, #ARGV, 2 do
  bounds = bounds or {}
  bounds[ARGV[i]] = tonumber(ARGV[i + 1])
end
local kept = 0 -- flows that were put off

-- attempt calls a function that only reads, and returns whether it succeeded, and its result. An error about what is
-- stored is noted as damage of the item. An error about the state of Redis fails the look.
local PASSING = { 'TRYAGAIN', 'MOVED ', 'ASK ', 'CLUSTERDOWN', 'MASTERDOWN', 'LOADING', 'executing the script', 'ACL failure' }
local damaged = {}
local function attempt(item, read, ...)
  local ok, result = pcall(read, ...)
  if not ok then
    local text = type(result) == 'table' and result.err or result
    for i = 1, #PASSING do
      if string.find(text, PASSING[i], 1, true) then
        error(result, 0)
      end
    end
    damaged[#damaged + 1] = string.gsub(item .. ': ' .. sub(text, 1, 200), '%c', ' ')
  end
  return ok, result
end

local flows, touched, unseen = {}, {}, {}
local function flow(name)
  local f = flows[name]
  if not f then
    f = flow_brief(name, baseline, unseen)
    flow_known(f)
    if f.depth > f.queued then
      flow_tally(f) -- what is promoted gets a sequence
      f.later_before = later_known(f)
    end
    flows[name], touched[#touched + 1] = f, f
  end
  return f
end

-- flow_reached is flow for who may change more of it than plan does when all goes well.
local function flow_reached(name)
  if not flows[name] then
    flow_reach(flow(name))
    flow_tally(flows[name])
  end
  return flows[name]
end

local function save_touched()
  for i = 1, #touched do
    finish_save(touched[i])
    flow_save(touched[i])
    due_save(touched[i], touched[i].later_before, helper and horizon)
  end
  due_flush()
end

local function head(key)
  return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or FARTHEST
end

local changed = false -- whether anything was written
local reply, filled, grant_counter, lot = { now, 0, 0, 0, 0, 0, 0, '' }, 8, 0, 0
if bounds then
  reply[9], filled = 0, 9
end

-- hand_out puts a leased job into the reply.
local function hand_out(j)
  local r, n = reply, filled
  r[n + 1], r[n + 2], r[n + 3] = j.id, j.stamp, j.full
  filled = n + 3
end
local due_head, expires_head, outbox_head = head(KEYS[2]), head(KEYS[3]), hands_over and head(KEYS[7]) or FARTHEST

-- start_writing is called by every step between its last read and its first write.
local function start_writing()
  changed = true
  unlock()
end

local function answer(more)
  if changed then
    due_head, expires_head, outbox_head = head(KEYS[2]), head(KEYS[3]), hands_over and head(KEYS[7]) or FARTHEST
  end
  -- The worker looks half a horizon before the next instant; a sweep or an expiry is of no use before its time.
  local next_due = min(due_head, expires_head + floor(horizon / 2))
  if clock.running > 0 then
    next_due = min(next_due, max(now, clock.swept + sweep) + floor(horizon / 2))
  end
  local to_hand_over = 0
  if outbox_head <= now then
    to_hand_over = 1
  else
    next_due = min(next_due, outbox_head + floor(horizon / 2))
  end
  if next_due >= FARTHEST then
    next_due = 0
  end
  local wake = clock.wake
  if not helper then
    wake = next_due > 0 and max(next_due - floor(horizon / 2), 0) or 0
  end
  local wanted = clock.help
  if help > 0 then
    wanted = 2 - help
  end
  -- A step of the wall clock that nobody took note of would be taken back by every look, and the shard's clock would stand still.
  if changed or clock.stepped or wake ~= clock.wake or wanted ~= clock.help then
    unlock()
    clock.wake, clock.help = wake, wanted
    clock_save()
  end
  if help == 1 then
    redis.call('PUBLISH', 'sluice:wake', 'help ' .. KEYS[1])
  end
  reply[2], reply[3], reply[4], reply[5], reply[6], reply[7] = next_due, more and 1 or 0, clock.help, grant_counter, to_hand_over, lot
  if damaged[1] then
    reply[8] = table.concat(damaged, '\n')
  end
  if bounds then
    reply[9] = kept
  end
  return reply
end

local function job_of(id)
  local raw = redis.call('GETRANGE', PREFIX .. 'job:' .. id, '0', UP_TO_PAYLOAD)
  if raw == '' then
    absent(PREFIX .. 'job:' .. id)
  end
  return job_read(raw)
end

-- record_of returns the record of a job, and false where there is none or something else stands in its place.
local function record_of(id)
  local ok, raw = attempt('job ' .. id, redis.call, 'GET', JOB .. id)
  return ok and raw
end

-- redeliver hands over a grant that its worker has not seen, without the jobs that are not leased under it any more.
local function redeliver(grant)
  local by_flow, order = {}, {}
  for id, epoch in string.gmatch(grant, '\n(%S+) (%d+)') do
    local raw = record_of(id)
    if not raw then
      absent(PREFIX .. 'job:' .. id)
    end
    local j = job_read(raw)
    -- The lease of a job of a damaged flow runs out.
    if j and j.state == 'l' and j.epoch == tonumber(epoch) and attempt('flow ' .. j.flow, flow_reached, j.flow) then
      j.id, j.full = id, raw
      if not by_flow[j.flow] then
        by_flow[j.flow] = {}
        order[#order + 1] = j.flow
      end
      table.insert(by_flow[j.flow], j)
    end
  end
  redis.call('EXISTS', KEYS[4])
  start_writing()
  for n = 1, #order do
    local f, list = flows[order[n]], by_flow[order[n]]
    local first, last, cost = list[1].stamp, list[#list].stamp, 0
    for i = 1, #list do
      cost = cost + list[i].cost
    end
    local late = first < from - SLACK
    local anew = late and last == f.last
    local back = late and not anew
    if anew then
      rewind(f, first, cost)
    end
    for i = 1, #list do
      local j = list[i]
      if anew then
        local stamp = stamp_of(f, j.at, from)
        back = back or f.policy.paused or stamp > now + horizon
        -- Should this be an old sending that comes after its answer, the job has departed: its slot stays spent.
        j.stamp = back and max(f.last, j.stamp) or stamp
        depart(f, j.stamp, j.cost)
      end
      if back then
        f.running = f.running - 1
        f.departed, clock.departed = f.departed - 1, clock.departed - 1
        clock.running = clock.running - 1
        j.outcome = 'R'
        give_back(j.id, j, f)
        redis.call('ZREM', KEYS[4], j.id)
      else
        local ends = max(now, j.stamp) + lease
        redis.call('SETRANGE', PREFIX .. 'job:' .. j.id, 0, job_head(j))
        redis.call('ZADD', KEYS[4], ends, j.id)
        hand_out(j)
      end
    end
  end
  save_touched()
end

-- jobs_to_change reads the jobs that an index is due for, their flows and what finish writes; from then on there is writing.
-- A job without a record is false. Those of a damaged flow are taken out of ids, and the index is due for them later.
local function jobs_to_change(ids, index)
  local jobs, later = {}, {}
  for i = #ids, 1, -1 do
    local ok, j = attempt('job ' .. ids[i], job_of, ids[i])
    j = ok and j or false
    if j and not attempt('flow ' .. j.flow, flow_reached, j.flow) then
      later[#later + 1], later[#later + 2] = now + ASIDE, table.remove(ids, i)
    else
      if j then
        attempt('idempotency key of job ' .. ids[i], finish_reads, j) -- else the job ends without it
      end
      table.insert(jobs, 1, j)
    end
  end
  start_writing()
  if later[1] then
    redis.call('ZADD', index, unpack(later))
  end
  return jobs
end

-- take_back ends leases whose worker was not heard of in time. The stamp of such a job stays spent: it may have departed.
local function take_back(ids)
  local jobs, lapsed = jobs_to_change(ids, KEYS[4]), 0
  if ids[1] then
    redis.call('ZREM', KEYS[4], unpack(ids))
  end
  for i = 1, #ids do
    local id, j = ids[i], jobs[i]
    if j and j.state == 'l' then
      local f = flows[j.flow]
      lapsed = lapsed + 1
      f.running = f.running - 1
      clock.running = clock.running - 1
      j.outcome = 'x'
      if charge_free(j) then
        f.dead = f.dead + 1
        finish(id, j, f, 'd', '')
      else
        give_back(id, j, f)
      end
    end
  end
  if lapsed > 0 then
    redis.call('HINCRBY', KEYS[1], 'lapsed', lapsed)
  end
  save_touched()
end

-- expire ends a waiting job whose max wait is over; it takes no slot.
local function expire(id, j, f)
  redis.call('ZREM', KEYS[3], id)
  if j.state == 'q' then
    redis.call('ZREM', PREFIX .. 'queue:' .. f.name, id)
    dequeue(f, j.cost)
  elseif j.state == 's' or j.state == 'r' then
    redis.call('ZREM', PREFIX .. 'later:' .. f.name, id)
  else
    return
  end
  leave_place(f, j)
  finish(id, j, f, 'x', '')
end

local function expire_all(ids)
  local jobs = jobs_to_change(ids, KEYS[3])
  for i = 1, #ids do
    if jobs[i] then
      expire(ids[i], jobs[i], flows[jobs[i].flow])
    else
      redis.call('ZREM', KEYS[3], ids[i])
    end
  end
  for i = 1, #touched do
    touched[i].later_before = later_head(touched[i])
  end
  save_touched()
end

-- scan_flows reads the flows of the next tenants that are to obey a baseline that has changed. The shard keeps the
-- cursor between two looks.
local function scan_flows()
  local found = redis.call('ZSCAN', KEYS[6], clock.looked, 'COUNT', TENANTS_MOST)
  local entries, names = found[2], {}
  for i = 1, #entries, 2 do
    local flows_of = PREFIX .. 'flows:' .. string.match(entries[i], '^%S+')
    local ok, of_tenant = attempt(flows_of, redis.call, 'SMEMBERS', flows_of)
    of_tenant = ok and of_tenant or {}
    if #of_tenant == 0 then
      absent(flows_of)
    end
    names[#names + 1] = of_tenant
  end
  return { names = names, cursor = found[1] }
end

-- scan_write makes the flows that were read due at once, so that a look retunes each.
local function scan_write(scan)
  for i = 1, #scan.names do
    for n = 1, #scan.names[i] do
      redis.call('ZADD', KEYS[2], now, scan.names[i][n])
    end
  end
  if clock.baseline == '' then
    clock.baseline = baseline -- of a shard that has none yet
  end
  clock.looked = scan.cursor
  redis.call('HSET', KEYS[1], 'baseline', clock.baseline, 'looked', clock.looked)
end

-- job_of_raw decodes a job for plan. A record that was deleted or evicted behind our back must not stop its flow: it is dropped.
local function job_of_raw(raw, id, f)
  if not raw then
    absent(PREFIX .. 'job:' .. id)
  end
  local j = job_read(raw) or { missing = true, state = 'q', at = 0, seq = 0, cost = 1, payload = 0, deadline = 0, flow = f.name }
  j.id, j.full = id, raw
  return j
end

-- job_waiting decodes what plan and carry_out need of a queued job that has no deadline, which most are; nil of any other. It has eight fields,
-- for a table of nine takes twice as much.
local function job_waiting(raw, id)
  if not raw or #raw <= HEAD or sub(raw, 29, 35) ~= ZERO7 then
    return nil
  end
  local e1, e2, e3, e4, a1, a2 = byte(raw, 3, 8)
  local i1, i2, i3, i4, i5, i6, i7 = byte(raw, 22, 28)
  local l1, l2, l3, l4 = byte(raw, 62, 65)
  return {
    epoch = ((e1 * 256 + e2) * 256 + e3) * 256 + e4, attempts = a1 * 256 + a2,
    at = (((((i1 * 256 + i2) * 256 + i3) * 256 + i4) * 256 + i5) * 256 + i6) * 256 + i7,
    cost = byte(raw, 57), payload = ((l1 * 256 + l2) * 256 + l3) * 256 + l4, id = id, full = raw, stamp = 0,
  }
end

-- How many jobs of all flows a look may still promote, and drop.
local promote_left, drop_left = PROMOTE_MOST, EXPIRE_MOST

-- promote takes the scheduled and retrying jobs of a flow that are eligible by the stamp from their index, into waiting by their sequence.
-- It begins at a place in the index and returns where to go on.
local function promote(f, waiting, stamp, from)
  local later = PREFIX .. 'later:' .. f.name
  local due = redis.call('ZRANGEBYSCORE', later, '-inf', stamp, 'WITHSCORES', 'LIMIT', from, promote_left)
  for i = 1, #due, 2 do
    local j = job_of_raw(record_of(due[i]), due[i], f)
    j.at, j.promoted = tonumber(due[i + 1]), true
    if j.state == 's' then
      f.seq = f.seq + 1
      j.seq = f.seq
    end
    if f.queued == 0 then
      f.ready = max(f.ready, j.at)
    end
    f.queued = f.queued + 1
    f.cost = f.cost + j.cost
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

-- slots is the most jobs that the paces may let leave up to now + horizon, by their TAT: a whole burst where that is now, less by one for
-- each interval that it is ahead.
local function slots(f)
  local most = FLOW_JOBS_MOST
  for i = 1, #f.cells do
    local c = f.cells[i]
    local span = now + horizon + 1 - max(c.tat, from - SLACK)
    most = min(most, max(0, floor(span * c.limit / c.period) + c.burst))
  end
  return most
end

-- head_of reads the first jobs of a queue: their ids, each with its sequence beside it if an entry has two parts.
local function head_of(f, most, parts)
  local queue, last = PREFIX .. 'queue:' .. f.name, format('%d', most - 1)
  if parts == 2 then
    return redis.call('ZRANGE', queue, '0', last, 'WITHSCORES')
  end
  return redis.call('ZRANGE', queue, '0', last)
end

-- records_of reads the records of the first most ids, in one command.
local function records_of(ids, most)
  local keys = {}
  for i = 1, min(#ids, most) do
    keys[i] = JOB .. ids[i]
  end
  return keys[2] and redis.call('MGET', unpack(keys)) or {}
end

-- share_of is how many jobs of the flow the worker's bounds let leave, nil where they do not bound it.
local function share_of(f)
  local route = bounds[route_of(f.name)]
  return route and min(route, ceil((3 * route - (bounds[f.name] or 0)) / 4))
end

-- plan decides, without writing, which jobs of a flow leave now: f.leave, f.drop (overdue) and f.promote. True when it stopped
-- before the flow had nothing more to give.
local function plan(f, budget)
  local p = f.policy
  f.leave, f.drop, f.promote = {}, {}, {}
  if p.paused then
    return false
  end
  local room = min(budget, FLOW_JOBS_MOST)
  if p.concurrency > 0 then
    room = min(room, p.concurrency - f.running)
  end
  if room <= 0 then
    return false
  end
  local share = bounds and share_of(f)
  if share then
    if share <= 0 then
      put_off(f, horizon)
      f.kept, kept = true, kept + 1
      return false
    end
    room = min(room, share)
  end
  local leave = slots(f)
  local wide = min(room, leave + 1) -- one more, to see that it does not leave
  local parts = f.later_before and 2 or 1 -- sequences are of use beside what is promoted alone
  local window = head_of(f, wide, parts)
  local seen = #window / parts
  if seen < wide and seen < f.queued then
    absent(PREFIX .. 'queue:' .. f.name)
    error('DAMAGED flow ' .. f.name)
  end
  local queued = f.queued -- before anything is dropped or promoted
  local all_seen = seen < wide or seen == queued
  local at, waiting, promoted_from = 1, {}, 0
  local raws = parts == 1 and records_of(window, leave) or {}
  while #f.leave < room and drop_left > 0 do
    if at > #window and not all_seen then
      if wide == room then
        return true
      end
      wide = room -- some took no slot
      window, raws = head_of(f, wide, parts), {}
      all_seen = #window / parts < wide or #window / parts == queued
    end
    local from_window = at <= #window and not (waiting[1] and waiting[1].seq < tonumber(window[at + 1]))
    local eligible = 0
    if not from_window and not waiting[1] then
      if not f.later_before then
        return false
      end
      if promote_left <= 0 then
        return true
      end
      eligible = f.later_before
    end
    local stamp = stamp_of(f, eligible, from)
    if stamp > now + horizon then
      return false
    end
    if f.later_before and f.later_before <= stamp and promote_left > 0 then
      promoted_from = promote(f, waiting, stamp, promoted_from)
    else
      local j
      if from_window then
        local id, raw = window[at], raws[at]
        if raw == nil then
          raw = record_of(id)
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
      if from_window then
        at = at + parts
      else
        table.remove(waiting, 1)
        j.gone = true
      end
      dequeue(f, j.cost)
      leave_place(f, j)
      if j.missing then
        drop_left = drop_left - 1
        f.drop[#f.drop + 1] = j
      elseif (j.deadline or 0) > 0 and j.deadline < stamp then
        attempt('idempotency key of job ' .. j.id, finish_reads, j)
        drop_left = drop_left - 1
        f.drop[#f.drop + 1] = j
      else
        depart(f, stamp, j.cost)
        j.stamp = stamp
        f.leave[#f.leave + 1] = j
      end
    end
  end
  return true
end

local ends, granted = {}, {} -- of the leases that carry_out gives: when they end, with their ids; ids with their epochs

-- carry_out_seldom is what carry_out leaves over: what is promoted and dropped.
local function carry_out_seldom(f)
  local queue = PREFIX .. 'queue:' .. f.name
  for i = 1, #f.promote do
    local j = f.promote[i]
    redis.call('ZREM', PREFIX .. 'later:' .. f.name, j.id)
    if j.missing and not j.gone then -- it could not be dropped in plan any more
      j.gone = true
      dequeue(f, j.cost)
      leave_place(f, j)
    end
    if not j.gone then
      j.state = 'q'
      redis.call('ZADD', queue, j.seq, j.id)
    end
    if not j.gone or j.state == 'l' then
      redis.call('SETRANGE', JOB .. j.id, 0, job_head(j))
    end
  end
  for i = 1, #f.drop do
    local j = f.drop[i]
    redis.call('ZREM', queue, j.id)
    redis.call('ZREM', KEYS[3], j.id)
    if j.missing then
      redis.call('ZREM', PREFIX .. 'returned:' .. f.name, j.id)
    else
      finish(j.id, j, f, 'x', '')
    end
  end
end

local function carry_out(f)
  local gone = {}
  for i = 1, #f.leave do
    local j = f.leave[i]
    j.epoch = j.epoch + 1
    if (j.deadline or 0) > 0 then
      redis.call('ZREM', KEYS[3], j.id)
    end
    local until_then = max(now, j.stamp) + lease
    ends[#ends + 1] = format('%d', until_then)
    ends[#ends + 1] = j.id
    if j.promoted then
      j.state = 'l'
    else
      gone[#gone + 1] = j.id
      redis.call('SETRANGE', JOB .. j.id, '1', job_leased(j.epoch, j.full, j.stamp))
    end
    granted[#granted + 1] = j.id
    granted[#granted + 1] = j.epoch == 1 and ' 1\n' or format(' %d\n', j.epoch)
    hand_out(j)
  end
  if #gone > 0 then
    redis.call('ZREM', PREFIX .. 'queue:' .. f.name, unpack(gone))
  end
  if f.promote[1] or f.drop[1] then
    carry_out_seldom(f)
  end
  if f.kept then
    hinder(f, 'upstream', f.ready + HINDERED)
  end
  f.running = f.running + #f.leave
  f.departed = f.departed + #f.leave
  clock.running, clock.departed = clock.running + #f.leave, clock.departed + #f.leave
end

-- idle_keys returns the keys of a tenant of which nothing is waiting, running, dead and kept, remembered by an API override, charged to
-- the future, or stored beyond LEFT_MOST bytes; nil for any other, and whether an API override keeps that one anyway.
local function idle_keys(tenant)
  local overrides = (redis.call('HGET', PREFIX .. 'policy:' .. tenant, 'api') or '') ~= ''
  local idle, left, dead, keys = not overrides, 0, 0, { PREFIX .. 'flows:' .. tenant }
  local names = redis.call('SMEMBERS', keys[1])
  if #names == 0 then
    absent(keys[1])
  end
  for n = 1, #names do
    local f = flow_load(names[n], baseline)
    idle = idle and f.depth == 0 and f.running == 0 and max(f.seen, f.last, f.held) < now - IDLE
    idle = idle and redis.call('EXISTS', PREFIX .. 'dead:' .. names[n]) == 0 -- a replay needs the flow and its name in the index
    for c = 1, #f.cells do
      idle = idle and f.cells[c].tat < now
    end
    left = left + aged_sum(f, ANSWERS, retention.succeeded * 1000000)
      + aged_sum(f, IDEMPOTENCY, max(retention.succeeded, retention.idempotency) * 1000000)
    dead = dead + f.dead_bytes
    keys[#keys + 1] = PREFIX .. 'flow:' .. names[n]
  end
  idle = idle and left <= LEFT_MOST
  return { keys = idle and keys, overrides = overrides, dead = dead }
end

-- forget_idle deletes what is known of idle tenants. The others are looked at again in ten minutes, or in a day when an API override
-- keeps them anyway.
local function forget_idle(entries)
  local gone, kept, keys = {}, {}, {}
  for i = 1, #entries do
    local tenant = string.match(entries[i], '^%S+')
    local ok, found = attempt('tenant ' .. tenant, idle_keys, tenant)
    if ok and found.keys then
      gone[#gone + 1] = entries[i]
      clock.stored = max(0, clock.stored - found.dead)
      for n = 1, #found.keys do
        keys[#keys + 1] = found.keys[n]
      end
    else
      kept[#kept + 1] = { entry = entries[i], again = ok and found.overrides and now + OVERRIDDEN or now }
    end
  end
  start_writing()
  if #keys > 0 then
    redis.call('DEL', unpack(keys))
    redis.call('ZREM', KEYS[6], unpack(gone))
  end
  for i = 1, #kept do
    redis.call('ZADD', KEYS[6], kept[i].again, kept[i].entry)
  end
end

-- plan_of plans a flow.
local function plan_of(name, budget)
  local f = flow(name)
  local more = plan(f, budget)
  if f.drop[1] then
    flow_reach(f)
    if not f.tallies then
      flow_tally(f)
    end
  end
  return more
end

-- set_aside forgets what was planned for a flow and counted out for it, and returns when it is due again.
local function set_aside(name, depth, bytes)
  if flows[name] then
    flows[name], touched[#touched] = nil, nil
  end
  clock.depth, clock.bytes = depth, bytes
  return format('%d', now + ASIDE)
end

local grant = redis.call('GET', KEYS[5])
if grant then
  local given, of = string.match(grant, '^(%d+) ?(%d*)') -- a former version kept no lot
  given = tonumber(given)
  if given > counter then
    reply[4] = clock.help
    return reply -- an old sending that comes after newer ones
  end
  if given ~= seen then
    redeliver(grant)
    grant_counter, lot = given, tonumber(of) or 0
    return answer(true)
  end
end

if clock.running > 0 and now >= clock.swept + sweep then
  if clock.swept > 0 and now - clock.swept > lease * 2 / 3 then
    -- Nobody looked for long: Redis was away or its clock was set. Workers may have been unable to extend their leases.
    clock.grace = now + lease
  elseif now >= clock.grace then
    local expired = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, SWEEP_MOST)
    if #expired > 0 then
      take_back(expired)
      return answer(true)
    end
  end
  clock.swept = now
  changed = true
end

if expires_head <= now then
  expire_all(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, EXPIRE_MOST))
  return answer(true)
end

local scanning = clock.looked ~= '0' or clock.baseline == ''
if scanning and (due_head > now + horizon or most <= 0) then
  local scan = scan_flows()
  start_writing()
  scan_write(scan)
  return answer(true)
end

if due_head > now + horizon then
  if head(KEYS[6]) < now - IDLE then
    forget_idle(redis.call('ZRANGEBYSCORE', KEYS[6], '-inf', now - IDLE, 'LIMIT', 0, IDLE_MOST))
    return answer(head(KEYS[6]) < now - IDLE)
  end
  return answer(false)
end
if most <= 0 then
  return answer(false)
end

local names = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now + horizon, 'LIMIT', 0, FLOWS_MOST)
local more, budget, aside = #names == FLOWS_MOST, most, {}
for i = 1, #names do
  if budget <= 0 then
    break
  end
  local name, depth, bytes = names[i], clock.depth, clock.bytes
  local ok, left = attempt('flow ' .. name, plan_of, name, budget)
  if ok then
    more = more or left
    local leaving, route = #flows[name].leave, bounds and route_of(name)
    budget = budget - leaving
    if route and bounds[route] then
      bounds[route] = bounds[route] - leaving
    end
  else
    aside[#aside + 1] = set_aside(name, depth, bytes)
    aside[#aside + 1] = name
  end
end
local scan = scanning and scan_flows()
redis.call('EXISTS', KEYS[4], unpack(unseen))
start_writing()
if aside[1] then
  redis.call('ZADD', KEYS[2], unpack(aside))
end
if scan then
  scan_write(scan)
end
if clock.running == 0 then
  clock.swept = now
end
for i = 1, #touched do
  carry_out(touched[i])
end
if #ends > 0 then
  redis.call('ZADD', KEYS[4], unpack(ends))
end
if granted[1] then
  granted[#granted] = sub(granted[#granted], 1, -2)
  clock.lots = clock.lots + 1
  grant_counter, lot = counter, clock.lots
  redis.call('SET', KEYS[5], ARGV[2] .. format(' %d\n', lot) .. table.concat(granted), 'EX', max(60, ceil(lease / 500000)))
end
save_touched()
return answer(scanning or more and budget > 0)
