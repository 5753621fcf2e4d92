-- kept: the records of forwarded requests that have ended, with their answers.
--
-- The index kept:FLOW has the id of each and its bytes, by the instant of its end. The field kept
-- of the flow is their sum. It is part of the sum of the shard. Where the next answer does not fit,
-- the oldest go: answers must not keep requests out.

local AT_ONCE = 1000 -- most records that one call drops
local PASSING = 5 -- s for which a dropped answer is still there for the client that waits for it

-- kept_read reads what a flow keeps, before the first write. most is its bound in bytes.
local function kept_read(f, most, reach)
  local index, bytes = PREFIX .. 'kept:' .. f.name, 0
  f.kept, f.kept_most = tonumber(redis.call('HGET', f.key, 'kept')) or 0, most
  for a = 1, #ARGV do
    bytes = bytes + #ARGV[a] + RECORD_BYTES
  end
  local last = f.kept + bytes > most and AT_ONCE or #ARGV
  f.oldest = redis.call('ZRANGE', index, 0, last, 'WITHSCORES')
  f.oldest_all = #f.oldest < 2 * last
  if not f.oldest[1] then
    absent(index)
  end
  for n = 1, #f.oldest, 2 do
    reach[#reach + 1] = PREFIX .. 'job:' .. string.match(f.oldest[n], '^%S+')
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
  local new = f.answered or {}
  for n = 1, #new do
    redis.call('ZADD', index, now, new[n])
    stored_add(f, 'kept', tonumber(string.match(new[n], '%d+$')))
    if f.oldest_all then
      list[#list + 1], list[#list + 2] = new[n], now
    end
  end
  for n = 1, #list, 2 do
    local id, bytes = string.match(list[n], '^(%S+) (%d+)$')
    local expired = tonumber(list[n + 1]) <= past
    if not expired and f.kept <= f.kept_most then
      break
    end
    stored_add(f, 'kept', -bytes)
    gone[#gone + 1] = list[n]
    if not expired then
      redis.call('EXPIRE', PREFIX .. 'job:' .. id, PASSING)
    end
  end
  if gone[1] then
    redis.call('ZREM', index, unpack(gone))
  end
  redis.call('EXPIRE', index, retention.succeeded)
  redis.call('HSET', f.key, 'kept', f.kept)
  f.answered = nil
end
