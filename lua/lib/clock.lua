-- clock: the monotone clock of a shard, and the totals stored with it.
--
-- KEYS[1] is always the clock hash. Its field n holds the numbers that every call reads, separated
-- by blanks. One field takes Redis a third of the time of 13:
--   last, off                        make TIME monotone (invariant 8)
--   wake                             when the owner polls next; 0 if it has not planned to
--   depth, bytes, stored, running    sums over the flows of the shard
--   admitted, rejected, departed     counts of all flows, also of forgotten ones
--   swept, grace                     when expired leases were last reclaimed; none is before grace
--   help                             1 while the owner requests that other workers lease, too
-- Fields of their own:
--   revision                         of the policies in force
--   closed                           an instant, and the routes that admit no jobs until then or
--                                    new policies: they are about to move to another pool
--   looked                           cursor of the scan that applies them: 00 at first, 0 when done
--   replid, resumes                  the replication id of Redis that was met last, and the instant
--                                    from which polls lease again, see restore
--   line:ROUTE                       the instant to which the last flow of a route was put off that
--                                    had no free slot, see plan
--   within, forgets                  where retune and forget stopped, within a page of flows
--   lapsed, dead                     expired leases and dead jobs so far
--   fence                            1; written to prove that replicas have what was written before
--   kept                             bytes of answers to forwarded requests, a part of stored
--   class:NAME                       bytes stored of a class of tenants, see lib/stored.lua

-- math.min and its like have no short names: a local that a function captures costs every call of
-- the script. With short names a lone job costs 2 % more of Redis's instructions.
local FARTHEST = 9007199254740991 -- 2^53 - 1, in µs

local PREFIX = string.sub(KEYS[1], 1, -6) -- 'sluice:{n}:' of 'sluice:{n}:clock'
local OVERDUE = 100000 -- µs after which a planned poll is taken for missed

-- last, off, wake, depth, running, swept, grace, help, bytes, stored, admitted, rejected, departed
local CLOCK = '^(%d+) (%d+) (%d+) (%-?%d+) (%-?%d+) (%d+) (%d+) (%d) (%-?%d+) (%-?%d+) (%-?%d+) (%-?%d+) (%-?%d+)$'
local CLOCK_TEXT = '%d %d %d %d %d %d %d %d %d %d %d %d %d'

local clock
local now

-- exists reports whether a derived key is there. It raises TRYAGAIN for one that is not, while its
-- slot is migrating: the key may be on the other node. Redis reports that only for a command with
-- several keys. Some call it for that alone.
local function exists(key)
  local found = redis.call('EXISTS', key) == 1
  if not found then
    redis.call('EXISTS', key, KEYS[1])
  end
  return found
end

-- missed calls exists, or notes the key in unseen for a caller who checks many at once.
local function missed(key, unseen)
  if unseen then
    unseen[#unseen + 1] = key
  else
    exists(key)
  end
end

local format = string.format
-- The usual counts of flows. To format them takes five times as long.
local SMALL = { [0] = '0', '1', '2', '3', '4', '5', '6', '7', '8' }

-- changed_numbers appends to args the fields from first to last, each with its value, whose numbers
-- differ from the stored ones, and updates those. They are whole, and formatted as such: Redis
-- would print each with 17 digits.
local function changed_numbers(args, fields, first, last, is, was)
  local n = #args
  for i = first, last do
    local name = fields[i]
    local value = is[name]
    if value ~= was[i] then
      was[i] = value
      args[n + 1] = name
      args[n + 2] = SMALL[value] or format('%d', value)
      n = n + 2
    end
  end
  return args
end

local MOST = 1000 -- arguments of one command

-- in_parts runs a command with the elements of a list from first on, after a key if there is one.
local function in_parts(cmd, key, list, first)
  for from = first, #list, MOST do
    local to = math.min(from + MOST - 1, #list)
    if key then
      redis.call(cmd, key, unpack(list, from, to))
    else
      redis.call(cmd, unpack(list, from, to))
    end
  end
end

-- numbers converts the first n values to numbers; a missing one is 0. Arithmetic parses a text
-- once, tonumber twice.
local function numbers(values, n)
  for i = 1, n do
    local v = values[i]
    values[i] = v and v ~= '0' and v + 0 or 0
  end
end

-- clock_load reads the clock of the shard. If it was deleted while the shard has tenants, its
-- counts would be wrong: all scripts except repair stop then.
local function clock_load(injected, mending)
  local v = redis.call('HMGET', KEYS[1], 'n', 'revision', 'looked', 'replid', 'resumes', 'closed')
  local last, off, wake, depth, running, swept, grace, help, bytes, stored, admitted, rejected, departed =
    string.match(v[1] or '0 0 0 0 0 0 0 0 0 0 0 0 0', CLOCK)
  if not last then
    error('DAMAGED clock')
  end
  clock = {
    last = last + 0, off = off + 0, wake = wake + 0, depth = depth + 0, running = running + 0,
    swept = swept + 0, grace = grace + 0,
    help = help + 0, bytes = bytes + 0, stored = stored + 0, admitted = admitted + 0, rejected = rejected + 0,
    departed = departed + 0, revision = v[2] or '', looked = v[3] or '0', stepped = false,
    replid = v[4] or '', resumes = v[5] and v[5] + 0 or 0, closed = v[6],
  }
  local t = tonumber(injected)
  if not t then
    local time = redis.call('TIME')
    t = tonumber(time[1]) * 1000000 + tonumber(time[2])
  end
  clock.stepped = t + clock.off < clock.last
  if clock.stepped then
    clock.off = clock.last - t
  end
  now = t + clock.off
  if clock.last == 0 and not mending and redis.call('EXISTS', PREFIX .. 'tenants', KEYS[1]) == 1 then
    error('DAMAGED clock')
  end
end

-- clock_save writes the clock at now. Some scripts rely on it as a write that Redis may refuse.
local function clock_save()
  local c = clock
  redis.call('HSET', KEYS[1], 'n', format(CLOCK_TEXT, now, c.off, c.wake, c.depth, c.running, c.swept,
    c.grace, c.help, c.bytes,
    c.stored, c.admitted, c.rejected, c.departed))
  if c.save_classes then
    c.save_classes()
  end
  if c.kept and c.kept ~= 0 then
    redis.call('HINCRBY', KEYS[1], 'kept', format('%d', c.kept))
    c.kept = 0
  end
end

-- replication_id is the name of the history of writes that this Redis has. A replica that becomes a
-- master begins another one, and so does a server that is started again: the last writes may be
-- missing there. nil: Redis names none. It is redis.pcall, for the embedded engine loses what
-- functions write to local variables after an error that Lua's pcall has caught.
local function replication_id()
  local info = redis.pcall('INFO', 'replication')
  return type(info) == 'string' and string.match(info, 'master_replid:(%x+)') or nil
end

-- unlock allows the writes that follow at maxmemory: after the first write of a script, Redis no
-- longer applies the OOM check to it.
local function unlock()
  redis.call('DEL', PREFIX .. 'unlock')
end

-- Redis 7 has sharded channels: in a cluster only the node of the shard gets a message, not all.
local SHARDED = redis.REDIS_VERSION_NUM

-- publish sends a message on a channel of the shard, and returns 1 for a sharded channel, else 0. A
-- user may lack the right to SPUBLISH. Workers subscribe to wake in both ways: while a slot moves,
-- scripts already run on a node where no worker listens yet.
local function publish(channel, message)
  if SHARDED then
    local ok, heard = pcall(redis.call, 'SPUBLISH', PREFIX .. channel, message)
    if ok and (heard > 0 or channel ~= 'wake') then
      return 1
    end
    redis.call('PUBLISH', PREFIX .. channel, message)
    return ok and 1 or 0
  end
  redis.call('PUBLISH', PREFIX .. channel, message)
  return 0
end

-- wake_for wakes the shard's owner if something is due before its planned poll, or if that poll is
-- overdue.
local function wake_for(due, horizon)
  local at = math.max(due - math.floor(horizon / 2), now, clock.resumes)
  local overdue = clock.wake ~= 0 and clock.wake < now - OVERDUE
  if clock.wake == 0 or at < clock.wake or overdue then
    clock.wake = at
    publish('wake', '')
  end
end
