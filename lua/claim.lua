-- claim: lease completions of jobs from the outbox.
--
-- Guarantee: a completion is leased to one caller at a time. It stays in the outbox until it is
-- acknowledged, and is leased again when the lease ends before that. The same call sent twice
-- returns the same completions (invariant 7).
--
-- KEYS
--   1 clock   2 outbox   3 claim
-- ARGV
--   1 instant in µs, or '' for the server's   2 name of the call   3 most jobs   4 lease in µs
-- Reply
--   now, 1 if more are due, then per job: id, record without its payload
-- Derived keys: job unlock tenants
-- Channels: (none)

--! needs record clock

local BYTES_MOST = 1048576 -- of the records that one call claims, as of a poll; it claims at least one

clock_load(ARGV[1])
local lease = tonumber(ARGV[4])
local name, claimed = string.match(redis.call('GET', KEYS[3]) or '', '^(%S+) ?(.*)$')
local again = name == ARGV[2]
local ids = {}
if again then
  for id in string.gmatch(claimed, '%S+') do
    ids[#ids + 1] = id
  end
else
  ids = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, tonumber(ARGV[3]))
end

local found, lost, leased, bytes = {}, {}, {}, 0
for i = 1, #ids do
  if bytes > BYTES_MOST and not again then
    ids = { unpack(ids, 1, i - 1) } -- a later call claims the others
    break
  end
  local key = PREFIX .. 'job:' .. ids[i]
  local raw = redis.call('GETRANGE', key, '0', UP_TO_PAYLOAD)
  local j = job_read(raw)
  if not j then
    exists(key)
  end
  if j and (j.state == 'S' or j.state == 'd' or j.state == 'c' or j.state == 'x') then
    found[#found + 1] = ids[i]
    found[#found + 1] = sub(raw, 1, j.prefix) .. result_of(key, j)
    bytes = bytes + j.prefix + j.result
    leased[#leased + 1] = now + lease
    leased[#leased + 1] = ids[i]
  else
    lost[#lost + 1] = ids[i] -- replayed since the first sending of this call, or deleted from outside
  end
end
if not again and #ids > 0 then
  unlock()
  if #lost > 0 then
    redis.call('ZREM', KEYS[2], unpack(lost))
  end
  if #leased > 0 then
    redis.call('ZADD', KEYS[2], unpack(leased))
  end
  redis.call('SET', KEYS[3], ARGV[2] .. ' ' .. table.concat(ids, ' '), 'EX', 60)
  clock_save()
end
local more = redis.call('ZRANGEBYSCORE', KEYS[2], '-inf', now, 'LIMIT', 0, 1)
return { now, #more, unpack(found) }
