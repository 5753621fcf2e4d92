-- stat: read a tenant's policy and the figures of its flows.
--
-- Guarantee: writes nothing.
--
-- KEYS
--   1 clock   2 policy   3 flows
-- ARGV
--   1 instant in µs, or '' for the server's   2 baseline
-- Reply
--   now, revision, what the API says, what the file says, reason, then per flow:
--   name, depth, queued, running, earliest next stamp, held until, admitted, rejected, departed, succeeded, dead,
--   eligible time of the oldest queued job (0 none),
--   share of its rate in force in millionths, until when it is stopped for its dead letters (0 it is not),
--   tier that the tenant's credential claimed last, bytes
-- Derived keys: flow queue policy job
-- Channels: (none)

--! include record clock flow

clock_load(ARGV[1])
local v = redis.call('HMGET', KEYS[2], 'revision', 'api', 'file', 'reason')
local reply = { now, tonumber(v[1]) or 0, v[2] or '', v[3] or '', v[4] or '' }
local names = redis.call('SMEMBERS', KEYS[3])
for i = 1, #names do
  local f = flow_load(names[i], ARGV[2])
  local oldest = 0
  local id = redis.call('ZRANGE', PREFIX .. 'queue:' .. f.name, 0, 0)[1]
  local j = id and job_read(redis.call('GETRANGE', PREFIX .. 'job:' .. id, '0', UP_TO_PAYLOAD))
  if j then
    oldest = j.at
  end
  local figures = {
    f.name, f.depth, f.queued, f.running, earliest(f), f.held, f.admitted, f.rejected, f.departed, f.succeeded, f.dead, oldest,
    share(f, now), f.full > now and f.full or 0, f.tier, f.bytes,
  }
  for n = 1, #figures do
    reply[#reply + 1] = figures[n]
  end
end
return reply
