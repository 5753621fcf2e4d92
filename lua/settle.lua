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
--   8 '' or, in a call for forwarded requests, how many bytes of their answers a flow may keep and,
--     for each class of tenants, its name and how many bytes more it may store. Beyond that the
--     oldest answers of the flow make room for its new ones, and go with their jobs
--   then per job: S and the epoch, as one argument, if it succeeded without a result or a change of
--   its max attempts; otherwise epoch, outcome, delay in µs (retry, overloaded: until eligible;
--   held: how long), max attempts (0 keeps them), result or '' for the one kept. A before the epoch
--   of one that succeeded: its result is aside, and this is how many bytes it has
--   An outcome is S succeeded, r retry, o overloaded, d dead, f failed, h held, R released,
--   m missed, x lapsed. Failed is dead and kept like a finished job: it cannot be replayed. After h
--   follows the cause of the hold, kept as it is. Overloaded is a retry that slows the flow. Missed
--   is a release of a job that came too late to leave at its stamp. Lapsed is what reclaim does
--   later: the worker stopped. A blank and the actual cost may end the outcome of an attempt. That
--   cost replaces the one which the departure was charged for.
-- Reply
--   now, and a text of a digit per job: 1 settled, 2 repeated, 3 stale, 4 settled or repeated, and
--   the job is dead because the hold or the lapse cost its last attempt, 5 settled, and the pool is
--   charged for less than the actual cost: for its max cost
-- Derived keys: flow queue later returned lines job idem done dead expires outbox unlock tenants
--   flows wait ready reserve kept aside
-- Channels: wake ended

--! needs record clock pools stored flow answered filing finish lease_end counts kept

local JOB_ARGS, PLAIN, ASIDE = 5, 83, 65 -- S, A
local SETTLED, REPEATED, STALE, DIED, CUT = '1', '2', '3', '4', '5'
clock_load(ARGV[1])
local horizon = tonumber(ARGV[2])
retention_of(ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7])
local kept_most, class_rooms = string.match(ARGV[8], '^(%d*)(.*)')
kept_most = kept_most ~= '' and kept_most + 0
retention.kept = kept_most

-- aside_of is the key of a result that is not among the arguments, of a lease of the job. The bytes
-- before it are free for the head and the prefix of the record.
local function aside_of(id, epoch)
  return PREFIX .. 'aside:' .. id .. ':' .. format('%d', epoch)
end

-- aside_epoch returns the epoch of a settlement whose result is aside, nil of any other.
local function aside_epoch(first)
  return byte(first) == ASIDE and sub(first, 2) + 0 or nil
end

-- died reports whether a job is dead although this end of a lease is mostly free.
local function died(j, outcome)
  return (outcome == 'h' or outcome == 'x') and j.state == 'd'
end

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
  local plain, aside = byte(ARGV[next_at]) == PLAIN, aside_epoch(ARGV[next_at])
  ids[k], args_at[k] = id, next_at
  local succeeds = not kept_most and (plain or ARGV[next_at + 1] == 'S')
  next_at = next_at + (plain and 1 or JOB_ARGS)
  local bytes = plain and 0 or aside and ARGV[next_at - 1] + 0 or #ARGV[next_at - 1]
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
        new_bytes[name] = (new_bytes[name] or 0) + RECORD_BYTES + j.prefix + math.max(j.result, bytes)
      end
      if j.epoch > 1 then
        reach[#reach + 1] = PREFIX .. 'returned:' .. name
      end
    end
    jobs[id] = j
  end
  if aside and redis.call('STRLEN', aside_of(id, aside)) ~= (j and j.prefix or 0) + bytes
    and j and j.state == 'l' and j.epoch == aside then
    error('ASIDE is missing') -- the caller sends all again, as arguments
  end
end

local function flow_whole(name)
  local f = flow_load(name, nil, reach)
  flow_known(f)
  flow_reach(f)
  f.later_before = later_known(f)
  if kept_most then
    local most = math.min(kept_most, f.policy.capacity_bytes > 0 and f.policy.capacity_bytes or kept_most)
    local room = f.class and string.match(class_rooms .. ' ', ' ' .. string.gsub(f.class, '%p', '%%%0') .. ' (%-?%d+) ')
    kept_read(f, most, tonumber(room), new_bytes[name] or 0, reach)
  end
  return f
end

local dues = names[1] and redis.call('ZMSCORE', KEYS[2], unpack(names))
for i = 1, #names do
  local name = names[i]
  flows[name] = not whole[name] and flow_counts(name, dues[i], reach) or flow_whole(name)
end
in_parts('EXISTS', KEYS[1], reach, 1)

-- Write.
unlock()

local codes = {}
for k = 6, #KEYS do
  local a, id = args_at[k], ids[k]
  local first, j = ARGV[a], jobs[id]
  local aside = aside_epoch(first)
  local epoch, outcome, delay, most, result
  if byte(first) == PLAIN then
    epoch, outcome, delay, most, result = first == 'S1' and 1 or sub(first, 2) + 0, 'S', 0, 0, ''
  else
    epoch, outcome, delay, most = aside or first + 0, sub(ARGV[a + 1], 1, 1), ARGV[a + 2] + 0, ARGV[a + 3] + 0
    result = aside and '' or ARGV[a + 4]
  end
  if not j then
    codes[k - 5] = STALE
  elseif j.state == 'l' and j.epoch == epoch then
    if aside then
      j.aside, j.aside_key = ARGV[a + 4] + 0, aside_of(id, epoch)
    end
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
    codes[k - 5] = died(j, outcome) and DIED or cut and CUT or SETTLED
  else
    -- While a job is leased again, its last outcome is that of the lease before.
    local settled = j.state == 'l' and j.epoch - 1 or j.epoch
    if settled ~= epoch or j.outcome ~= outcome then
      codes[k - 5] = STALE
    else
      codes[k - 5] = died(j, outcome) and DIED or REPEATED
    end
  end
  if aside and not (j and j.aside_key == aside_of(id, aside)) then -- it is no record
    redis.call('DEL', aside_of(id, aside))
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
  if f.freed then
    stored_add(f, 'live', -f.freed)
    aged_add(f, ANSWERS, retention.succeeded * 1000000, f.answered_bytes)
  end
  if f.counts then
    counts_save(f, horizon)
  else
    due_save(f, f.later_before, horizon)
    flow_save(f)
  end
end
if #touched > 0 then
  if pool_list[1] then
    all_answered_save()
  end
  due_flush(horizon, true)
end
return { now, table.concat(codes) }
