-- oldest: since when a flow has something to do.

-- returned_since is since when the job could have left that came back first of a flow's, 0 without one. An id whose job is gone is ignored.
local function returned_since(name)
  local head = redis.call('ZRANGE', PREFIX .. 'returned:' .. name, 0, 0, 'WITHSCORES')
  if not head[1] then
    return 0
  end
  local state = redis.call('GETRANGE', PREFIX .. 'job:' .. head[1], '1', '1')
  return (state == 'q' or state == 'r' or state == 'l') and tonumber(head[2]) or 0
end

-- queued_since is since when the job at the head of a flow's queue is eligible. Where that cannot be told it is 0, and the key that is missing.
local function queued_since(name)
  local queue = PREFIX .. 'queue:' .. name
  local id = redis.call('ZRANGE', queue, 0, 0)[1]
  if not id then
    return 0, queue
  end
  local job = PREFIX .. 'job:' .. id
  local at = redis.call('GETRANGE', job, '21', '27')
  if #at < 7 then
    return 0, job
  end
  return n56(at, 1)
end

-- oldest_of is since when the oldest job of a flow could have left: of those in the queue, those that are due but not in it yet, and those
-- that came back from a worker. It is 0 for none. A key that is missing is named, too.
local function oldest_of(name, depth, queued, running)
  if depth == 0 and running == 0 then
    return 0
  end
  local oldest, missing = returned_since(name), nil
  local function count(since)
    if since > 0 and (oldest == 0 or since < oldest) then
      oldest = since
    end
  end
  if queued > 0 then
    local since
    since, missing = queued_since(name)
    count(since)
  end
  if depth > queued then
    local due = tonumber(redis.call('ZRANGE', PREFIX .. 'later:' .. name, 0, 0, 'WITHSCORES')[2])
    if due and due <= now then
      count(due)
    end
  end
  return oldest, missing
end

-- letters_of is how many dead letters of a flow can be replayed: those of the jobs that have died since then.
local function letters_of(name, died, since)
  return died > 0 and redis.call('ZCOUNT', PREFIX .. 'dead:' .. name, since, '+inf') or 0
end
