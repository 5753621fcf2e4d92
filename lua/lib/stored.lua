-- stored: the bytes that are stored of a flow. The arithmetic of windows is that of shaper.Aged.
--
-- live counts the records of waiting and leased jobs, dead_bytes those of dead letters. Keys that
-- Redis expires are counted in windows of their time to live: answers, which are records of other
-- jobs that have ended, and keys, which are idempotency keys of jobs that have ended.

local ANSWERS, IDEMPOTENCY = { 'answers', 'answers_before', 'answers_at' },
  { 'keys', 'keys_before', 'keys_at' }

-- stored_add adds bytes to live or dead_bytes, and to the sum of the shard.
local function stored_add(f, name, bytes)
  local sum = math.max(0, f[name] + bytes)
  clock.stored = math.max(0, clock.stored + sum - f[name])
  f[name] = sum
end

-- aged_add adds bytes that Redis deletes after length, in µs, to the current window, which is as
-- long.
local function aged_add(f, window, length, bytes)
  local sum, before, at = window[1], window[2], window[3]
  if now >= f[at] + 2 * length then
    f[sum], f[before], f[at] = 0, 0, now
  elseif now >= f[at] + length then
    f[sum], f[before], f[at] = 0, f[sum], f[at] + length
  end
  f[sum] = f[sum] + bytes
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
    absent(dead)
    return 0
  end
  return math.floor(f.dead_bytes * (redis.call('ZCOUNT', dead, format('(%d', now - keep), '+inf') / count))
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
