-- poll: shared by the scripts of a worker's poll: their arguments, their reply, and how they set
-- damaged items aside. See tick.lua for KEYS, ARGV and reply.

--! needs record clock pools flow finish

local ASIDE = 10000000 -- µs for which a damaged item is set aside
local IDLE = 600000000 -- µs until an idle tenant is forgotten
local EXPIRE_MOST = 50 -- overdue jobs that one call ends
local JOB = PREFIX .. 'job:'

clock_load(ARGV[1])
local counter, seen, most = tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local lease, horizon, sweep, help = tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7]), tonumber(ARGV[8])
retention_of(ARGV[9], ARGV[10], ARGV[11], ARGV[12], ARGV[13])
local helper, hands_over = ARGV[14] == '1', ARGV[15] == '1'
local from = now + tonumber(ARGV[16]) -- the earliest stamp that this call gives

-- attempt calls a function that only reads, and returns whether it succeeded, and its result. An
-- error about stored data is reported as damage of the item. An error about the state of Redis
-- fails the poll.
local PASSING = { 'POOLS are needed', 'TRYAGAIN', 'MOVED ', 'ASK ', 'CLUSTERDOWN', 'MASTERDOWN', 'LOADING',
  'executing the script', 'ACL failure', 'non local key', 'Unknown Redis command' }
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
    f = flow_of(name, POLICY_AT, nil, unseen)
    flow_known(f)
    if f.depth > f.queued then
      flow_tallied(f) -- promoted jobs get a sequence
      f.later_before = later_known(f)
    end
    flows[name], touched[#touched + 1] = f, f
  end
  return f
end

-- flow_reached is flow for callers that write more of it than leases.
local function flow_reached(name)
  if not flows[name] then
    flow_reach(flow(name))
    flow_tallied(flows[name])
  end
  return flows[name]
end

local function head(key)
  return tonumber(redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')[2]) or FARTHEST
end

local changed = false -- whether anything was written
local COUNTER, NEED, DAMAGED, PUT_OFF = 5, 7, 8, 9 -- in the reply
local reply, filled = { now, 0, 0, 0, 0, 0, '', '', 0 }, 9

-- hand_out puts a leased job into the reply.
local function hand_out(j)
  local r, n = reply, filled
  r[n + 1], r[n + 2], r[n + 3] = j.id, j.stamp, j.record
  filled = n + 3
end
local due_head, expires_head = head(KEYS[2]), head(KEYS[3])
local outbox_head = hands_over and head(KEYS[7]) or FARTHEST

-- start_writing is called between the last read and the first write. It reports what was wrong with
-- a pool: saving the pool repairs it.
local function start_writing()
  for i = 1, #pool_list do
    local p = pool_list[i]
    if p.healed[1] then -- plan_pool has not reported it
      damaged[#damaged + 1] = 'pool ' .. p.short .. ': ' .. table.concat(p.healed, ', ')
      p.healed = {}
    end
  end
  changed = true
  unlock()
end

-- unswept reports that the last search for expired leases was long ago: Redis was away or its clock
-- was set. Workers may have been unable to extend their leases.
local function unswept()
  return clock.swept > 0 and now - clock.swept > lease * 2 / 3
end

-- granted is the counter of the stored grant, nil without one.
local function granted(grant)
  local counter_of = string.match(grant or '', '^%d+')
  return counter_of and tonumber(counter_of)
end

-- outdated answers an old sending that comes after newer ones.
local function outdated()
  reply[4] = clock.help
  return reply
end

-- answer ends the poll. more reports whether work was left; needed names the script that does it.
local function answer(more, needed)
  if changed then
    due_head, expires_head = head(KEYS[2]), head(KEYS[3])
    outbox_head = hands_over and head(KEYS[7]) or FARTHEST
  end
  -- The worker polls half a horizon before the next instant. A sweep or an expiry must not come
  -- early.
  local next_due = math.min(due_head, expires_head + math.floor(horizon / 2))
  if clock.running > 0 then
    next_due = math.min(next_due, math.max(now, clock.swept + sweep) + math.floor(horizon / 2))
  end
  local to_hand_over = 0
  if outbox_head <= now then
    to_hand_over = 1
  else
    next_due = math.min(next_due, outbox_head + math.floor(horizon / 2))
  end
  if next_due >= FARTHEST then
    next_due = 0
  end
  local wake = clock.wake
  if not helper then
    wake = next_due > 0 and math.max(next_due - math.floor(horizon / 2), 0) or 0
  end
  local wanted = clock.help
  if help > 0 then
    wanted = 2 - help
  end
  -- A step of the wall clock must be stored, or every poll would see it again and the shard's clock
  -- would not advance.
  if changed or clock.stepped or wake ~= clock.wake or wanted ~= clock.help then
    unlock()
    clock.wake, clock.help = wake, wanted
    clock_save()
  end
  if help == 1 then
    publish('wake', 'help')
  end
  reply[2], reply[3], reply[4], reply[6] = next_due, more and 1 or 0, clock.help, to_hand_over
  reply[NEED] = needed or ''
  if damaged[1] then
    reply[DAMAGED] = table.concat(damaged, '\n')
  end
  return reply
end

-- No poll goes on before its worker has made a call of restore, and the shard has resumed.
do
  local met = replication_id()
  local restored = not met or met == clock.replid and met == ARGV[17]
  if not restored or now < clock.resumes then
    local planned = restored and not helper and clock.resumes or clock.wake
    if clock.stepped or clock.wake ~= planned then
      unlock()
      clock.wake = planned
      clock_save()
    end
    reply[2] = restored and clock.resumes + math.floor(horizon / 2) or 0
    reply[4], reply[NEED] = clock.help, 'restore'
    return reply
  end
end

-- record_of returns the record of a job, false if it is missing or damaged.
local function record_of(id)
  local ok, raw = attempt('job ' .. id, redis.call, 'GET', JOB .. id)
  return ok and raw
end

local function job_of(id)
  local raw = redis.call('GETRANGE', PREFIX .. 'job:' .. id, '0', UP_TO_PAYLOAD)
  if raw == '' then
    exists(PREFIX .. 'job:' .. id)
  end
  return job_read(raw)
end

-- jobs_to_change reads the jobs of ids, their flows and what finish needs, and starts writing. A
-- job without a record is false. Jobs of a damaged flow are removed from ids, and index lists them
-- for later.
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
