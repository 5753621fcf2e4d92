-- relay: store a part of the answer to a forwarded request while it comes.
--
-- Guarantee: only the worker with the current lease writes, and each part is stored once. Sent
-- again, a part changes nothing and gets the same answer. From the first part on the request is
-- never sent again: see reclaim.
--
-- KEYS
--   1 clock   2 job   3 stream   4 beyond   5 reading
-- ARGV
--   1 instant in µs, or '' for the server's   2 epoch   3 number of the part, from 1
--   4 the part   5 bytes of the answer with it   6 '1' for a part beyond those that are stored
--   7 most parts beyond that are kept   8 seconds after which all of them go
-- Reply
--   now, 1 stored or 0 not the current lease, the offset of the reader that has most, -1 for none
-- Derived keys: tenants
-- Channels: ended

--! needs record clock

clock_load(ARGV[1])
local head = redis.call('GETRANGE', KEYS[2], 0, HEAD - 1)
if #head < HEAD or sub(head, STATE_AT, STATE_END) ~= 'l' or n32(head, EPOCH_AT) ~= ARGV[2] + 0 then
  return { now, 0, -1 }
end
local furthest = redis.call('ZREVRANGE', KEYS[5], 0, 0, 'WITHSCORES')[2]
local id = ARGV[2] .. '-' .. ARGV[3]
local added
if ARGV[6] == '1' then
  added = redis.pcall('XADD', KEYS[4], 'MAXLEN', '~', ARGV[7], id, 'n', ARGV[5], 'p', ARGV[4])
else
  added = redis.pcall('XADD', KEYS[3], id, 'n', ARGV[5], 'p', ARGV[4])
end
if type(added) == 'table' and added.err then
  if not string.find(added.err, 'equal or smaller', 1, true) then
    return added -- as Redis names it: without memory, it is tried again
  end
else
  redis.call('EXPIRE', KEYS[ARGV[6] == '1' and 4 or 3], ARGV[8])
end
publish('ended:' .. sub(KEYS[2], #PREFIX + 5), '')
return { now, 1, furthest and furthest + 0 or -1 }
