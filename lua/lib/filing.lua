-- filing: where flows and pools are filed by the instant of their next possible stamp: KEYS[2], the
-- index due, and the indexes of pools.

--! needs record clock pools bucket pool flow

-- flow_due is the next instant at which a job of the flow may leave, nil when none can.
local function flow_due(f, later)
  local p = f.policy
  if p.paused or (p.concurrency > 0 and f.running >= p.concurrency) then
    return nil
  end
  if f.queued > 0 then
    return earliest(f)
  end
  return later and math.max(earliest(f), later)
end

-- hinder stores why jobs of a flow cannot leave, apart from its policy: a cause as limited_by shows
-- it, and the instant until which it holds. A later cause replaces it.
local function hinder(f, cause, till)
  redis.call('HSET', f.key, 'hindered', format('%d:', till) .. cause)
end

-- waits_for_credentials reports whether a hold says that a route lacks its own credentials.
local function waits_for_credentials(cause)
  return sub(cause, 1, 5) == 'auth:'
end

-- hold_for holds a flow or a pool, and stores the cause of the hold that ends last.
local function hold_for(f, till, cause)
  if till >= f.held then
    redis.call('HSET', f.key, 'cause', cause == '' and '0' or cause)
  end
  hold(f, till, waits_for_credentials(cause))
end

local filed, unfiled = {}, {} -- flows to add to the index of due flows, and to remove from it

-- file_due files a flow or a pool in the index of due flows, or removes it if due is nil. due_flush
-- writes that. If horizon is given, it wakes the owner when due is before the planned poll.
local function file_due(name, due, horizon)
  if not due then
    unfiled[#unfiled + 1] = name
    return
  end
  filed[#filed + 1] = format('%d', due)
  filed[#filed + 1] = name
  if horizon then
    wake_for(due, horizon)
  end
end

-- due_save files the flow under its next possible stamp, see file_due; flow_save writes it.
local function due_save(f, later, horizon)
  if f.is_pool then
    return -- due_flush does it
  end
  if f.left then
    pool_leave(f)
  end
  local due = flow_due(f, later)
  if f.pool then
    pool_file(f, due)
  else
    file_due(f.name, due, horizon)
  end
end

-- last_first reverses a list of scores and members in ascending order, for ZADD. Redis walks a
-- small index from its head to each new member, so the greatest score should come first. In batches
-- of a hundred this saves 10 % of a job's instructions in Redis.
local function last_first(list)
  local i, k = 1, #list - 1
  while i < k do
    list[i], list[i + 1], list[k], list[k + 1] = list[k], list[k + 1], list[i], list[i + 1]
    i, k = i + 2, k - 2
  end
  return list
end

-- due_flush writes what due_save has filed, of at most 1,000 flows, and the pools. It wakes the
-- owner for a pool if horizon is given. With with_clock it saves the clock, before an index of a
-- wrong type can stop the script: the sums of the shard are those of its flows.
local function due_flush(horizon, with_clock)
  if pool_list[1] then
    pools_save(horizon, file_due, flow_save)
  end
  if with_clock then
    clock_save()
  end
  if #filed > 0 then
    redis.call('ZADD', KEYS[2], unpack(filed))
  end
  if #unfiled > 0 then
    redis.call('ZREM', KEYS[2], unpack(unfiled))
  end
end
