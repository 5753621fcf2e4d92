-- batch: reads the arguments of admit and the flows of its jobs.

--! needs record clock stored bucket flow pool

local FLOW_KEYS, FLOW_ARGS = 5, 4
local SEEN_EVERY = 60000000 -- µs between two notes of a tenant's activity
clock_load(ARGV[1])
local horizon, atomic, flow_count = tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])
local no_bytes, no_tenants = string.find(ARGV[5], 'b', 1, true), string.find(ARGV[5], 't', 1, true)
local most_stored, keep_answers, keep_dead, keep_keys = string.match(ARGV[6], '^(%d+) (%d+) (%d+) (%d+)$')
most_stored = most_stored ~= '0' and most_stored + 0 or nil
keep_dead = keep_dead * 1000000

-- is_closed reports whether a route is about to move to another pool.
local function is_closed(route)
  local till, routes = string.match(clock.closed, '^(%d+) (.*)$')
  return now < till + 0 and string.find(' ' .. routes .. ' ', ' ' .. route .. ' ', 1, true)
end

-- sibling_of reads a random flow of the tenant. It returns it if Redis has expired all of its dead
-- letters, or of its answers to forwarded requests, and they are still counted: a flow that gets no
-- more jobs is not forgotten while the tenant is active.
local function sibling_of(f)
  local name = redis.call('SRANDMEMBER', f.names)
  if not name or name == f.name then
    return nil
  end
  local key = PREFIX .. 'flow:' .. name
  local v = redis.call('HMGET', key, 'dead_bytes', 'class')
  local other = { name = name, key = key, dead_bytes = v[1] and v[1] + 0 or 0, class = v[2] or nil }
  lapsed_of(other, FARTHEST)
  return other.dead_lapsed + other.kept_lapsed > 0 and other or nil
end

-- Read. Redis has checked the slot of every key in KEYS when it took the call.
local flows, numbered, replies = {}, {}, {}
for i = 1, flow_count do
  local k, a = 4 + (i - 1) * FLOW_KEYS, 6 + (i - 1) * FLOW_ARGS
  local f = flow_load(sub(KEYS[k + 1], #PREFIX + 6), ARGV[a + 1], {})
  local p = f.policy
  if p.elsewhere or clock.closed and is_closed(route_of(f.name)) then
    error('MISPLACED flow ' .. f.name) -- by a process that has not heard of the pool yet
  end
  f.number, f.queue, f.later, f.names, f.entry = i, KEYS[k + 2], KEYS[k + 3], KEYS[k + 5], ARGV[a + 2]
  f.estimated = ARGV[a + 4] == '1'
  local closed, share, class = string.match(ARGV[a + 3], '^(%a*):(%d+):(%S+)$')
  if class and redis.call('EXISTS', KEYS[k + 4]) == 1 then
    closed, class = nil, nil -- a tenant with settings of its own is in no class
  elseif class == '-' then
    class = nil
  end
  closed, f.becomes, f.most = closed or '', class, class and share ~= '0' and share + 0 or most_stored
  f.unknown = (no_tenants or closed ~= '') and f.fresh and not redis.call('ZSCORE', KEYS[4], f.entry)
  f.class_full = string.find(closed, 'b', 1, true) or string.find(closed, 't', 1, true) and f.unknown
  if f.becomes ~= f.class then
    f.kept_before = tonumber(not f.fresh and redis.call('HGET', f.key, 'kept') or '0')
  end
  if class or f.class then
    redis.call('EXISTS', PREFIX .. 'class:' .. (f.class or class), PREFIX .. 'class:' .. (class or f.class))
  end
  f.looks = not f.fresh and now - f.seen > SEEN_EVERY
  if f.looks then
    lapsed_of(f, keep_dead)
    f.sibling = sibling_of(f)
  end
  f.stopped = paused(f)
  f.later_before = later_known(f)
  if not f.fresh or redis.call('EXISTS', f.queue, f.later) > 0 then
    flow_known(f)
  end
  f.add_queue, f.add_later, f.asked, f.asked_bytes = {}, {}, 0, 0
  f.touched = not f.fresh and f.policy.text ~= f.was[POLICY_AT]
  f.first = math.max(earliest(f), now) -- constant within the call, because nothing leaves here
  local pool = f.pool
  f.max_cost = p.max_cost -- of a job
  if pool then
    pool.asked, pool.asked_bytes, pool.first = 0, 0, pool.first or math.max(earliest(pool), now)
    local most = pool_cost(pool.policy)
    if not f.max_cost or f.max_cost > most then
      f.max_cost, f.cost_of_pool = most, true
    end
  end
  flows[i], numbered[format('%d', i)] = f, f
  replies[i] = { p.drain.limit, p.drain.period, p.capacity, p.capacity_bytes, 0 }
  f.seq_before, f.depth_before, f.bytes_before, f.live_before = f.seq, f.depth, f.bytes, f.live
  if f.most then
    f.others = f.dead_bytes + aged_sum(f, ANSWERS, keep_answers * 1000000)
      + aged_sum(f, IDEMPOTENCY, math.max(keep_answers, keep_keys) * 1000000)
  end
end

-- over_share returns whether bytes more would take the flow over its share of the store. It first
-- subtracts dead letters past retention, which Redis has deleted.
local function over_share(f, bytes)
  if f.live + f.others + bytes <= f.most then
    return false
  end
  if f.dead_bytes > 0 and not f.dead_counted then
    f.dead_counted = true
    f.others = f.others - f.dead_bytes + dead_alive(f, keep_dead)
  end
  return f.live + f.others + bytes > f.most
end

local first_key, first_arg = 5 + flow_count * FLOW_KEYS, 7 + flow_count * FLOW_ARGS
-- Neither a job nor an idempotency key exists.
local all_new = redis.call('EXISTS', unpack(KEYS, first_key)) == 0
local id_at = #PREFIX + 5

-- asks_for decodes the request of a job: its flow, delay, max wait, hash of its idempotency key,
-- fingerprint, and hash of its type, nil if it is not told.
local function asks_for(ask)
  local kind, rest = string.match(ask, '^=(%l+) (.*)$')
  ask = rest or ask
  local f = numbered[ask]
  if f then
    return f, 0, 0, '', nil, kind
  end
  local number, delay, wait, hash, print = string.match(ask, '^(%d+) (%d+) (%d+) ?(%S*) ?(%S*)$')
  return numbered[number], tonumber(delay), tonumber(wait), hash, print, kind
end

-- stored is the record of a job that an earlier sending of the call has admitted, else ''.
local function stored(key)
  return redis.call('GETRANGE', key, '0', UP_TO_PAYLOAD)
end
