-- clock: the shard's clock, monotone over steps of the wall clock, and the totals kept beside it.
--
-- KEYS[1] is always the clock hash: last and off make TIME monotone (invariant 8); wake is the instant of the owner's planned
-- look, 0 for none; depth, bytes and running are sums over the shard's flows; swept is when expired leases were last looked for, grace
-- until when none is taken back; help says that the owner asks others to lease beside it; baseline is the one that flows were last
-- looked at with, and looked where a look at all of them is to go on, 0 when it is done.

local PREFIX = string.sub(KEYS[1], 1, -6) -- 'sluice:{n}:' of 'sluice:{n}:clock'
local OVERDUE = 100000 -- µs after which a planned look is taken for missed

local clock
local now

-- absent is called where a key that stands nowhere in KEYS was not there. In a slot that is being imported, such a key may still be on the
-- other node; Redis says so only of a command with several keys of which one is missing.
local function absent(key)
  redis.call('EXISTS', key, KEYS[1])
end

local function clock_load(injected)
  local v = redis.call('HMGET', KEYS[1], 'last', 'off', 'wake', 'depth', 'running', 'swept', 'grace', 'help', 'baseline', 'looked', 'bytes')
  clock = {
    last = tonumber(v[1]) or 0,
    off = tonumber(v[2]) or 0,
    wake = tonumber(v[3]) or 0,
    depth = tonumber(v[4]) or 0,
    running = tonumber(v[5]) or 0,
    swept = tonumber(v[6]) or 0,
    grace = tonumber(v[7]) or 0,
    help = tonumber(v[8]) or 0,
    baseline = v[9] or '',
    looked = v[10] or '0',
    bytes = tonumber(v[11]) or 0,
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
end

local function clock_save()
  redis.call('HSET', KEYS[1], 'last', now, 'off', clock.off, 'wake', clock.wake, 'depth', clock.depth,
    'running', clock.running, 'swept', clock.swept, 'grace', clock.grace, 'help', clock.help, 'baseline', clock.baseline, 'looked', clock.looked, 'bytes', clock.bytes)
end

-- unlock makes the writes that follow possible at maxmemory: a script that has written once is not refused any more.
local function unlock()
  redis.call('DEL', PREFIX .. 'unlock')
end

-- wake_for tells the shard's owner that something is due before its planned look, or that it missed that look.
local function wake_for(due, horizon)
  local look = math.max(due - floor(horizon / 2), now)
  local overdue = clock.wake ~= 0 and clock.wake < now - OVERDUE
  if clock.wake == 0 or look < clock.wake or overdue then
    clock.wake = look
    redis.call('PUBLISH', 'sluice:wake', KEYS[1])
  end
end
