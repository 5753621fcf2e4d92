-- admitted: what admit counts of a flow, and in which indexes it files the flow and its new jobs.

--! needs clock stored flow filing batch

-- admitted_count adds what a call has admitted to a flow to the sums of the flow, the shard and the
-- class. A tenant whose settings or credential have changed takes what it has stored into its other
-- class.
local function admitted_count(f)
  if f.looks and f.touched then
    lapsed_count(f)
    f.kept_before = f.kept
  end
  local admitted = f.seq - f.seq_before
  f.admitted, clock.admitted = f.admitted + admitted, clock.admitted + admitted
  clock.depth, clock.bytes = clock.depth + f.depth - f.depth_before, clock.bytes + f.bytes - f.bytes_before
  clock.stored = clock.stored + f.live - f.live_before
  f.leaves = f.touched and f.becomes ~= f.class and (f.class or '')
  if f.leaves then
    local before = f.live_before + f.dead_bytes + f.kept_before
    class_add(f.class, -before)
    class_add(f.becomes, before)
    f.class = f.becomes
  end
  class_add(f.class, f.live - f.live_before)
end

-- admitted_file writes the new jobs of a flow, its class and its tenant into their indexes. None of
-- these keys was read.
local function admitted_file(f)
  in_parts('ZADD', f.queue, last_first(f.add_queue), 1)
  in_parts('ZADD', f.later, f.add_later, 1)
  if f.leaves and f.leaves ~= '' then
    redis.call('HDEL', f.key, 'class')
    redis.call('SREM', PREFIX .. 'class:' .. f.leaves, tenant_of(f.name))
  end
  if f.leaves and f.class then
    redis.call('HSET', f.key, 'class', f.class)
    redis.call('SADD', PREFIX .. 'class:' .. f.class, tenant_of(f.name))
  end
  if f.fresh then
    redis.call('SADD', f.names, f.name)
  end
  if now - f.seen > SEEN_EVERY then
    f.seen = now
    redis.call('SADD', f.names, f.name) -- should the list have been deleted
    if redis.call('ZADD', KEYS[4], now, f.entry) == 1 then
      local r = replies[f.number]
      r[6], r[7], r[8] = r[6] or 0, r[7] or 0, 1
    end
  end
end
