-- oldest: since when the oldest job of a flow could have left, and its dead letters.

--! needs record clock

local function head_of(index)
  local head = redis.call('ZRANGE', index, 0, 0, 'WITHSCORES')
  return head[1], tonumber(head[2])
end

-- returned_since covers the jobs that came back from a worker. An id whose job is gone is ignored.
local function returned_since(name)
  local id, since = head_of(PREFIX .. 'returned:' .. name)
  local state = id and redis.call('GETRANGE', PREFIX .. 'job:' .. id, STATE_AT - 1, STATE_END - 1)
  return (state == 'q' or state == 'r' or state == 'l') and since or FARTHEST
end

-- queued_since covers the jobs in the queue.
local function queued_since(name)
  local queue = PREFIX .. 'queue:' .. name
  local id = head_of(queue)
  local job = PREFIX .. 'job:' .. (id or '')
  local at = id and redis.call('GETRANGE', job, AT_AT - 1, AT_END - 1) or ''
  if #at < 7 then
    exists(id and job or queue)
    return FARTHEST
  end
  return n56(at, 1)
end

-- due_since covers the jobs that are due and not in the queue yet.
local function due_since(name)
  local _, due = head_of(PREFIX .. 'later:' .. name)
  return due and due <= now and due or FARTHEST
end

-- oldest_of returns the earliest of these instants, 0 where no job could have left.
local function oldest_of(name, depth, queued, running)
  if depth == 0 and running == 0 then
    return 0
  end
  local since = returned_since(name)
  if queued > 0 then
    since = math.min(since, queued_since(name))
  end
  if depth > queued then
    since = math.min(since, due_since(name))
  end
  return since < FARTHEST and since or 0
end

-- letters_of returns the number of dead letters of a flow that died since the given instant.
local function letters_of(name, died, since)
  return died > 0 and redis.call('ZCOUNT', PREFIX .. 'dead:' .. name, since, '+inf') or 0
end
