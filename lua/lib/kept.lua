-- kept: the records of forwarded requests that have ended, with their answers.
--
-- The index kept:FLOW has the id of each and its bytes, by the instant of its end. The field
-- kept of the flow is their sum. It is part of the sum of the shard, whose field kept has them
-- alone. Where the next answer does not fit, the oldest of the flow go: answers must not keep
-- requests out. They make room for new ones only, because the bound also falls when others fill
-- the store.

--! needs clock stored finish

local STEP, AT_ONCE = 32, 1000 -- records of one reading; most records that one call drops
local LINGERS = 5 -- s for which a dropped answer is still there for the client that waits for it
local kept_left = AT_ONCE

-- kept_read reads what a flow keeps, before the first write: as many of its oldest records as must
-- go for bytes of new ones, and those past retention. most is its bound in bytes. room is how many
-- bytes its class may still store; nil: it has no class, or that has no bound. A call drops AT_ONCE
-- records at most and leaves the rest to the next ones.
local function kept_read(f, most, room, bytes, reach)
  local index, past = PREFIX .. 'kept:' .. f.name, now - retention.succeeded * 1000000
  f.kept = tonumber(redis.call('HGET', f.key, 'kept')) or 0
  f.kept_most = room and math.min(most, f.kept + room) or most
  local over, list, at, goes = math.min(bytes, f.kept + bytes - f.kept_most), {}, 0, true
  f.oldest_all = false
  while goes and kept_left > 0 do
    local step = math.min(at == 0 and 1 or STEP, kept_left) -- mostly, none goes
    local some = redis.call('ZRANGE', index, at, at + step - 1, 'WITHSCORES')
    f.oldest_all = #some < 2 * step
    goes = false
    for n = 1, #some, 2 do
      local id, size = string.match(some[n], '^(%S+) ?(%d*)')
      goes = over > 0 or tonumber(some[n + 1]) <= past
      over = over - (tonumber(size) or 0)
      list[#list + 1], list[#list + 2] = some[n], some[n + 1]
      reach[#reach + 1] = PREFIX .. 'job:' .. id
    end
    at, kept_left = at + #some / 2, kept_left - #some / 2
    goes = goes and not f.oldest_all
  end
  f.oldest = list
  if not list[1] then
    exists(index)
  end
end

-- kept_save counts the records that a call has added. It drops those past retention, which Redis
-- has deleted, and the oldest above the bound.
local function kept_save(f)
  local index, list, gone = PREFIX .. 'kept:' .. f.name, f.oldest, {}
  local past = now - retention.succeeded * 1000000
  if f.oldest_all and not list[1] then
    stored_add(f, 'kept', -f.kept)
  end
  local new, added = f.answered or {}, 0 -- and as many bytes may go
  for n = 1, #new do
    local bytes = tonumber(string.match(new[n], '%d+$'))
    redis.call('ZADD', index, now, new[n])
    stored_add(f, 'kept', bytes)
    added = added + bytes
    if f.oldest_all then
      list[#list + 1], list[#list + 2] = new[n], now
    end
  end
  for n = 1, #list, 2 do
    local id, bytes = string.match(list[n], '^(%S+) (%d+)$')
    local expired = tonumber(list[n + 1]) <= past
    if not expired then
      if f.kept <= f.kept_most or added <= 0 then
        break
      end
      added = added - bytes
    end
    stored_add(f, 'kept', -bytes)
    gone[#gone + 1] = list[n]
    if not expired then
      redis.call('EXPIRE', PREFIX .. 'job:' .. id, LINGERS)
    end
  end
  if gone[1] then
    redis.call('ZREM', index, unpack(gone))
  end
  redis.call('EXPIRE', index, retention.succeeded)
  redis.call('HSET', f.key, 'kept', f.kept)
  f.answered = nil
end
