-- relay: store parts of the answer to a forwarded request while it comes.
--
-- Guarantee: only the worker with the current lease begins an answer, and each part is stored once,
-- in order. Sent again, a part changes nothing and gets the same answer. From the first part on the
-- request is never sent again: see reclaim. So nobody else has parts, and all but the first of a
-- key come right before the call, past the script.
--
-- KEYS
--   1 clock   2 job   3 stream   4 beyond   5 reading
-- ARGV
--   1 instant in µs, or '' for the server's   2 epoch   3 number of the first part, from 1
--   4 '1' for parts beyond those that are stored   5 most parts beyond that are kept
--   6 seconds after which all of them go
--   then per part that the script stores: the part, bytes of the answer with it
-- Reply
--   now, 1 stored or 0 not the current lease or nothing is stored, the offset of the reader that
--   has most, -1 for none
-- Derived keys: tenants
-- Channels: ended

--! needs record clock

clock_load(ARGV[1])
local head = redis.call('GETRANGE', KEYS[2], 0, HEAD - 1)
if #head < HEAD or sub(head, STATE_AT, STATE_END) ~= 'l' or n32(head, EPOCH_AT) ~= ARGV[2] + 0 then
  return { now, 0, -1 }
end
local furthest = redis.call('ZREVRANGE', KEYS[5], 0, 0, 'WITHSCORES')[2]
local past = ARGV[4] == '1'
local key = past and KEYS[4] or KEYS[3]
for i = 7, #ARGV, 2 do
  local id, bytes, part = format('%s-%d', ARGV[2], ARGV[3] + (i - 7) / 2), ARGV[i + 1], ARGV[i]
  local stored
  if past then
    stored = redis.pcall('XADD', key, 'MAXLEN', '~', ARGV[5], id, 'n', bytes, 'p', part)
  else
    stored = redis.pcall('XADD', key, id, 'n', bytes, 'p', part)
  end
  local failed = type(stored) == 'table' and stored.err
  if failed and not string.find(failed, 'equal or smaller', 1, true) then
    return stored -- as Redis names it: without memory, this part and the others are tried again
  end
end
if redis.call('EXPIRE', key, ARGV[6]) == 0 then
  return { now, 0, -1 }
end
publish('ended:' .. sub(KEYS[2], #PREFIX + 5), 'p')
return { now, 1, furthest and furthest + 0 or -1 }
