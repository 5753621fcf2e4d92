-- stored: the bytes that are stored of a flow. The arithmetic of windows is that of shaper.Aged.
--
-- live counts the records of waiting and leased jobs, dead_bytes those of dead letters. Keys that
-- Redis expires are counted in windows of their time to live: answers, which are records of other
-- jobs that have ended, and keys, which are idempotency keys of jobs that have ended. Redis expires
-- dead letters and the answers in kept:FLOW, too. They are subtracted when a job ends in the same
-- way, once a minute in which the tenant submits jobs, and when forget looks at the tenant.
--
-- A class is a number of tenants that share a part of the store, such as all guests. The field
-- class of a flow names the class that its bytes are counted in. The clock of the shard holds a sum
-- for each class, and the set class:NAME its tenants.

--! needs record clock

local ANSWERS, IDEMPOTENCY = { 'answers', 'answers_before', 'answers_at' },
  { 'keys', 'keys_before', 'keys_at' }

local CLASS = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+)$'

-- class_add adds bytes, if any, to the sum of a class, if there is one, and returns its sums.
-- clock_save writes them. What an older version has not counted is not subtracted.
local function class_add(name, bytes)
  if not name or bytes == 0 then
    return nil
  end
  local all = clock.classes
  if not all then
    all = {}
    clock.classes, clock.save_classes = all, function()
      for class, c in pairs(all) do
        redis.call('HSET', KEYS[1], 'class:' .. class, format('%d %d %d %d %d %d %d', c.stored,
          c.answers, c.answers_before, c.answers_at, c.keys, c.keys_before, c.keys_at))
      end
    end
  end
  local c = all[name]
  if not c then
    local stored, answers, answers_before, answers_at, keys, keys_before, keys_at =
      string.match(redis.call('HGET', KEYS[1], 'class:' .. name) or '0 0 0 0 0 0 0', CLASS)
    c = {
      stored = (stored or 0) + 0, answers = (answers or 0) + 0, answers_before = (answers_before or 0) + 0,
      answers_at = (answers_at or 0) + 0, keys = (keys or 0) + 0, keys_before = (keys_before or 0) + 0,
      keys_at = (keys_at or 0) + 0,
    }
    all[name] = c
  end
  c.stored = math.max(0, c.stored + (bytes or 0))
  return c
end

-- stored_add adds bytes to live, dead_bytes or kept, and to the sums of the class and of the shard.
local function stored_add(f, name, bytes)
  local sum = math.max(0, f[name] + bytes)
  clock.stored = math.max(0, clock.stored + sum - f[name])
  if name == 'kept' then
    clock.kept = (clock.kept or 0) + sum - f.kept
  end
  if f.class then
    class_add(f.class, sum - f[name])
  end
  f[name] = sum
end

-- aged_add adds bytes that Redis deletes after length, in µs, to the current window, which is as
-- long, of a flow and of its class.
local function aged_add(f, window, length, bytes)
  local sum, before, at = window[1], window[2], window[3]
  if now >= f[at] + 2 * length then
    f[sum], f[before], f[at] = 0, 0, now
  elseif now >= f[at] + length then
    f[sum], f[before], f[at] = 0, f[sum], f[at] + length
  end
  f[sum] = f[sum] + bytes
  if f.class then
    aged_add(class_add(f.class), window, length, bytes)
  end
end

-- aged_sum estimates how many of these bytes are left, as if those of the window before came
-- evenly.
local function aged_sum(f, window, length)
  local age = now - f[window[3]]
  if age >= 2 * length then
    return 0
  elseif age >= length then
    return math.floor(f[window[1]] * ((2 * length - age) / length))
  end
  return f[window[1]] + math.floor(f[window[2]] * ((length - age) / length))
end

-- dead_alive estimates the bytes of the dead letters that Redis still keeps. Redis deletes each
-- after keep, in µs, and no script subtracts it from dead_bytes at that moment.
local function dead_alive(f, keep)
  local dead = PREFIX .. 'dead:' .. f.name
  local count = redis.call('ZCARD', dead)
  if count == 0 then
    exists(dead)
    return 0
  end
  return math.floor(f.dead_bytes * (redis.call('ZCOUNT', dead, format('(%d', now - keep), '+inf') / count))
end

-- lapsed_of reads what a flow still counts although Redis has expired it: dead letters, each after
-- keep, in µs, and answers to forwarded requests.
local function lapsed_of(f, keep)
  f.kept = tonumber(redis.call('HGET', f.key, 'kept')) or 0
  local gone = f.kept > 0 and not exists(PREFIX .. 'kept:' .. f.name)
  f.kept_lapsed = gone and f.kept or 0
  f.dead_lapsed = f.dead_bytes > 0 and f.dead_bytes - dead_alive(f, keep) or 0
end

-- lapsed_count subtracts what lapsed_of has found from the sums. lapsed_trim removes it from the
-- store; the caller writes dead_bytes.
local function lapsed_count(f)
  stored_add(f, 'dead_bytes', -f.dead_lapsed)
  stored_add(f, 'kept', -f.kept_lapsed)
end

local function lapsed_trim(f, keep)
  if f.dead_lapsed > 0 then
    redis.call('ZREMRANGEBYSCORE', PREFIX .. 'dead:' .. f.name, '-inf', format('%d', now - keep))
  end
  if f.kept_lapsed > 0 then
    redis.call('HDEL', f.key, 'kept')
  end
end

-- dead_left removes a dead letter that has left the index from the counts, and lets a flow go on
-- that had stopped for its dead letters.
local function dead_left(f, j, dead_capacity, dead_bytes)
  local left = redis.call('ZCARD', PREFIX .. 'dead:' .. f.name)
  stored_add(f, 'dead_bytes', left > 0 and -job_bytes(j) or -f.dead_bytes)
  if f.full ~= 0 and left < dead_capacity and f.dead_bytes < dead_bytes then
    f.full, f.ready = 0, now
  end
end
