-- lease: the poll that leases jobs; see tick.lua.

local FLOWS_MOST = 64
local FORGET_EVERY = 8 -- polls of a busy shard, for one that looks for tenants to forget
local HINDERED = 1000000 -- µs for which a flow counts as hindered after the instant it was put off to

local ends, leased = {}, {} -- of the leases that carry_out gives: ends with ids, ids with epochs

-- carry_out_rare writes the jobs that plan has promoted and dropped.
local function carry_out_rare(f)
  local queue = PREFIX .. 'queue:' .. f.name
  for i = 1, #f.promote do
    local j = f.promote[i]
    redis.call('ZREM', PREFIX .. 'later:' .. f.name, j.id)
    if j.missing and not j.gone then -- plan stopped before it dropped the job
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
    local until_then = math.max(now, j.stamp) + lease
    ends[#ends + 1] = format('%d', until_then)
    ends[#ends + 1] = j.id
    if j.promoted then
      j.state = 'l'
    else
      gone[#gone + 1] = j.id
      redis.call('SETRANGE', JOB .. j.id, '1', job_leased(j.epoch, j.full, j.stamp))
    end
    leased[#leased + 1] = j.id
    leased[#leased + 1] = j.epoch == 1 and ' 1\n' or format(' %d\n', j.epoch)
    hand_out(j)
  end
  if #gone > 0 then
    redis.call('ZREM', PREFIX .. 'queue:' .. f.name, unpack(gone))
  end
  if f.promote[1] or f.drop[1] then
    carry_out_rare(f)
  end
  if f.kept then
    hinder(f, f.kept, f.ready + HINDERED)
  end
  if not f.pool then -- else plan_pool has counted them
    run(f, #f.leave)
    leave(f, #f.leave)
  end
end

-- plan_of plans a flow or a pool. It returns whether more jobs may be ready to leave, how many
-- leave, and the name of a pool that is to be planned, too.
local function plan_of(name, budget)
  if names_pool(name) then
    return { plan_pool(name, budget) }
  end
  local f = flow(name)
  if f.pool then -- its route has joined the pool since it was filed here
    plan_begin(f)
    unfiled[#unfiled + 1] = name
    return { false, 0, f.pool.name } -- hundreds of its flows may be due before it
  end
  local more = plan(f, budget)
  if f.drop[1] then
    flow_reach(f)
    flow_tallied(f)
  end
  return { more, #f.leave }
end

-- set_aside undoes the plan of a flow, and returns when the flow is due again.
local function set_aside(name, depth, bytes)
  if flows[name] then
    flows[name], touched[#touched] = nil, nil
  end
  clock.depth, clock.bytes = depth, bytes
  return format('%d', now + ASIDE)
end

local given = granted(redis.call('GET', KEYS[5]))
if given and given > counter then
  return outdated()
end
if given and given ~= seen then
  return answer(true, 'redeliver')
end

-- Leases that are due go before the other work. The reply names one of the scripts that have some,
-- in turns: the caller runs it before its next poll, so neither waits for the other to end.
local chores, turn, idle = {}, math.floor(counter / 2), due_head > now + horizon
if clock.running > 0 and now >= clock.swept + sweep then
  local lapsed = not unswept() and now >= clock.grace and head(KEYS[4]) <= now
  if lapsed then
    chores[1] = 'reclaim'
  else
    clock.grace = unswept() and now + lease or clock.grace
    clock.swept, changed = now, true
  end
end
if expires_head <= now then
  chores[#chores + 1] = 'expire'
end
if clock.looked ~= '0' then
  chores[#chores + 1] = 'retune'
end
if (idle or turn % FORGET_EVERY == 0) and head(KEYS[6]) < now - IDLE then
  chores[#chores + 1] = 'forget'
end
local chore = chores[2] and chores[turn % #chores + 1] or chores[1]
if idle or most <= 0 then
  return answer(chore and true, chore)
end

local was_idle = clock.running == 0
local names = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now + horizon, 'LIMIT', 0, FLOWS_MOST)
local more, budget, aside, next = #names == FLOWS_MOST, most, {}, 1
while names[next] and budget > 0 do
  local name, depth, bytes = names[next], clock.depth, clock.bytes
  next = next + 1
  local ok, planned = attempt('flow ' .. name, plan_of, name, budget)
  if ok then
    more = more or planned[1]
    local leaving, route = planned[2], bounds and route_of(name)
    budget, names[#names + 1] = budget - leaving, planned[3]
    if route and bounds[route] then
      bounds[route] = bounds[route] - leaving
    end
  else
    aside[#aside + 1] = set_aside(name, depth, bytes)
    aside[#aside + 1] = name
  end
end
redis.call('EXISTS', KEYS[4], unpack(unseen))
start_writing()
if aside[1] then
  redis.call('ZADD', KEYS[2], unpack(aside))
end
if was_idle then
  clock.swept = now
end
for route, at in pairs(lines_end) do
  redis.call('HSET', KEYS[1], 'line:' .. route, format('%d', at))
end
for i = 1, #touched do
  carry_out(touched[i])
end
if #ends > 0 then
  redis.call('ZADD', KEYS[4], unpack(last_first(ends)))
end
if leased[1] then
  leased[#leased] = sub(leased[#leased], 1, -2)
  reply[COUNTER] = counter
  redis.call('SET', KEYS[5], ARGV[2] .. '\n' .. table.concat(leased), 'EX', math.max(60, math.ceil(lease / 500000)))
end
save_flows(touched, helper and horizon)
local needed = pools_needed and 'tick_pools' or chore
return answer(needed or more and budget > 0, needed)
