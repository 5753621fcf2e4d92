-- lease: the poll that leases jobs; see tick.lua.

--! needs record clock pools flow filing finish poll plan plan_pool

local FLOWS_MOST = 32 -- due flows that a poll loads, about; names that it reads of them, earliest first
local FORGET_EVERY = 8 -- polls of a busy shard, for one that looks for tenants to forget
local HINDERED = 1000000 -- µs for which a flow counts as hindered after the instant it was put off to

local ends, leased = {}, {} -- of the leases that carry_out gives: ends with ids, ids with epochs

-- carry_out_rare writes the jobs that plan has promoted and dropped.
local function carry_out_rare(f)
  local queue = PREFIX .. 'queue:' .. f.name
  for i = 1, #f.promote do
    local j = f.promote[i]
    redis.call('ZREM', PREFIX .. 'later:' .. f.name, j.id)
    if j.missing and not j.taken then -- plan stopped before it dropped the job
      j.taken = true
      dequeue(f, j.cost)
      leave_place(f, j)
    end
    if not j.taken then
      j.state = 'q'
      redis.call('ZADD', queue, j.seq, j.id)
    end
    if not j.taken or j.state == 'l' then
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
  local dequeued = {}
  for i = 1, #f.leaving do
    local j = f.leaving[i]
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
      dequeued[#dequeued + 1] = j.id
      redis.call('SETRANGE', JOB .. j.id, '1', job_leased(j.epoch, j.record, j.stamp))
    end
    leased[#leased + 1] = j.id
    leased[#leased + 1] = j.epoch == 1 and ' 1\n' or format(' %d\n', j.epoch)
    hand_out(j)
  end
  if #dequeued > 0 then
    redis.call('ZREM', PREFIX .. 'queue:' .. f.name, unpack(dequeued))
  end
  if f.promote[1] or f.drop[1] then
    carry_out_rare(f)
  end
  if f.put_off then
    hinder(f, f.put_off, f.ready + HINDERED)
  end
  if not f.pool then -- else plan_pool has counted them
    run(f, #f.leaving)
    count_departed(f, #f.leaving)
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
  return { more, #f.leaving }
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
local chores, rotation, idle = {}, math.floor(counter / 2), due_head > now + horizon
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
if (idle or rotation % FORGET_EVERY == 0) and head(KEYS[6]) < now - IDLE then
  chores[#chores + 1] = 'forget'
end
local chore = chores[2] and chores[rotation % #chores + 1] or chores[1]
if idle or most <= 0 then
  return answer(false, chore)
end

local was_idle = clock.running == 0
-- Due flows. names: those that the poll has read, of count in all. taken: how many of them it has
-- planned or put into a line. looks: flows of full routes that it has loaded. lined: instants and
-- names of others. All are fields of a table: the scripts have no local names to spare, and after
-- an error the embedded engine loses what functions write to local variables.
local due = { budget = most, taken = 0, loaded = 0, looks = 0, lined = {}, aside = {} }

do -- a block, because a script may have 200 local names
  -- A list of due flows is long from LONG on. LATEST and BETWEEN_MOST are names that a poll reads
  -- of its end, and between. They also bound the time of a poll: to put off a flow of a full route
  -- takes Redis about 10 µs.
  local LONG, LATEST, BETWEEN_MOST = 256, 100, 100
  local REGULARS_MOST = 16 -- due ones that a poll reads before the others: half of what it plans

  -- by_rounds orders names so that each round has one of every route.
  local function by_rounds(names)
    local by_route, order, count = {}, {}, #names
    local ending, same = '/' .. (route_of(names[1]) or ''), 1
    while same < count and sub(names[same + 1], -#ending) == ending do
      same = same + 1
    end
    if same == count then
      return names
    end
    for i = 1, count do
      local name = names[i]
      local route = route_of(name) or ''
      local of_route = by_route[route]
      if of_route then
        of_route[#of_route + 1] = name
      else
        of_route = { name }
        by_route[route], order[#order + 1] = of_route, of_route
      end
    end
    local ordered, round = {}, 1
    while #ordered < count do
      for i = 1, #order do
        ordered[#ordered + 1] = order[i][round]
      end
      round = round + 1
    end
    return ordered
  end

  -- due.read reads the names of due flows, earliest first. Of a long list, or while a route is
  -- bounded, it reads regulars before them and the latest between, one after every third, and the
  -- routes take turns. While a route is bounded, it reads a part between them, too, another in each
  -- poll. So thousands of flows that become due at once, or may not leave, do not hide the flows
  -- that become due again and again, or later, or are of other routes.
  function due.read()
    local limit = now + horizon
    local first = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', limit, 'LIMIT', 0, FLOWS_MOST)
    due.names, due.count = first, #first
    if #first < FLOWS_MOST then
      return
    end
    due.count = redis.call('ZCOUNT', KEYS[2], '-inf', limit)
    if not bounds and due.count < LONG then
      return
    end
    local names, read = {}, {}
    local function add(name)
      if not read[name] then
        names[#names + 1], read[name] = name, true
      end
    end
    local scores = regulars[1] and redis.call('ZMSCORE', KEYS[2], unpack(regulars))
    for i = 1, #regulars do
      if #names < REGULARS_MOST and (tonumber(scores[i]) or FARTHEST) <= limit then
        add(regulars[i])
      end
    end
    local tail = math.max(FLOWS_MOST, due.count - LATEST)
    local last = redis.call('ZRANGE', KEYS[2], tail, due.count - 1)
    local left = #last
    for i = 1, #first do
      add(first[i])
      if i % 3 == 0 and left > 0 then
        add(last[left])
        left = left - 1
      end
    end
    for i = left, 1, -1 do
      add(last[i])
    end
    if bounds then
      local choices = math.max(0, tail - FLOWS_MOST - BETWEEN_MOST + 1)
      local from = FLOWS_MOST + math.floor(counter * 618034 % 1000000 * choices / 1000000)
      local between = redis.call('ZRANGE', KEYS[2], from, math.min(from + BETWEEN_MOST, tail) - 1)
      for i = 1, #between do
        add(between[i])
      end
    end
    due.names = by_rounds(names)
  end

  -- due.plan plans a due flow or pool.
  function due.plan(name)
    local depth, bytes, route = clock.depth, clock.bytes, bounds and route_of(name)
    local ok, planned = attempt('flow ' .. name, plan_of, name, due.budget)
    due.loaded = due.loaded + 1
    if not ok then
      due.aside[#due.aside + 1] = set_aside(name, depth, bytes)
      due.aside[#due.aside + 1] = name
      return
    end
    due.more, due.budget = due.more or planned[1], due.budget - planned[2]
    if route and bounds[route] then
      bounds[route] = bounds[route] - planned[2]
    end
    if planned[3] and due.budget > 0 then
      due.plan(planned[3])
    end
  end

  -- due.check_lined sets lined flows aside that were deleted.
  function due.check_lined()
    local lined, keys = due.lined, {}
    for i = 2, #lined, 2 do
      keys[i / 2] = PREFIX .. 'flow:' .. lined[i]
    end
    if not keys[1] or redis.call('EXISTS', unpack(keys)) == #keys then
      return
    end
    due.lined = {}
    for i = 1, #keys do
      local key, at, name = keys[i], lined[2 * i - 1], lined[2 * i]
      if attempt('flow ' .. name, flow_known, { key = key, name = name, fresh = not exists(key) }) then
        due.lined[#due.lined + 1], due.lined[#due.lined + 2] = at, name
      else
        due.aside[#due.aside + 1], due.aside[#due.aside + 2] = format('%d', now + ASIDE), name
      end
    end
  end

  -- due.take plans a due flow. If its route is full, it goes into the line of the route without
  -- being loaded, unless the poll has looked at few of those.
  function due.take(name)
    local lined, no_slot = due.lined, line.no_slot(name)
    due.looks = due.looks + (no_slot and 1 or 0)
    if not no_slot or due.looks <= LOOKS_MOST then
      due.plan(name)
    else
      lined[#lined + 1], lined[#lined + 2] = line.join(route_of(name), now + horizon), name
    end
    due.taken = due.taken + 1
  end
end

due.read()
for i = 1, #due.names do
  if due.budget <= 0 or due.loaded >= FLOWS_MOST then
    break
  end
  due.take(due.names[i])
end
due.check_lined()
redis.call('EXISTS', KEYS[4], unpack(unseen))
start_writing()
if due.aside[1] then
  redis.call('ZADD', KEYS[2], unpack(due.aside))
end
if was_idle then
  clock.swept = now
end
for i = 1, #due.lined, 2 do
  local at, name = format('%d', due.lined[i]), due.lined[i + 1]
  due.lined[i] = at
  redis.call('HSET', PREFIX .. 'flow:' .. name, 'ready', at, 'hindered', format('%d:upstream', at + HINDERED))
end
in_parts('ZADD', KEYS[2], due.lined, 1)
reply[PUT_OFF] = reply[PUT_OFF] + #due.lined / 2
for route, at in pairs(line.ends) do
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
return answer((due.more or due.taken < due.count) and due.budget > 0, chore)
