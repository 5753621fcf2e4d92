-- stat: read a tenant's policy and the figures of its flows.
--
-- Guarantee: writes nothing.
--
-- KEYS
--   1 clock   2 policy   3 flows
-- ARGV
--   1 instant in µs, or '' for the server's   2 baseline   3 retention of dead letters in s
-- Reply
--   now, revision, what the API says, what the file says, reason, then per flow:
--   name, depth, queued, running, earliest next stamp, held until, admitted, rejected, departed, succeeded, dead,
--   since when its oldest job could have left (0 none),
--   share of its rate in force in millionths, until when it is stopped for its dead letters (0 it is not),
--   tier that the tenant's credential claimed last, bytes, what hinders it as lib/flow.lua writes it ('' nothing), dead letters that can be
--   replayed, cause of its hold ('0' none is known),
--   what is stored in bytes: of waiting and leased jobs, of dead letters; of answers in this window, in the one before, and when this one
--   began; of idempotency keys the same
-- Derived keys: flow queue later returned policy job dead tenants
-- Channels: (none)

--! include record clock policy bucket stored flow oldest

clock_load(ARGV[1])
local kept_since = now - tonumber(ARGV[3]) * 1000000
local v = redis.call('HMGET', KEYS[2], 'revision', 'api', 'file', 'reason')
local reply = { now, tonumber(v[1]) or 0, v[2] or '', v[3] or '', v[4] or '' }
local names = redis.call('SMEMBERS', KEYS[3])
for i = 1, #names do
  local f = flow_load(names[i], ARGV[2])
  local oldest = oldest_of(f.name, f.depth, f.queued, f.running)
  local figures = {
    f.name, f.depth, f.queued, f.running, earliest(f), f.held, f.admitted, f.rejected, f.departed, f.succeeded, f.dead, oldest,
    share(f, now), f.full > now and f.full or 0, f.tier, f.bytes, redis.call('HGET', f.key, 'hindered') or '',
    letters_of(f.name, f.dead, kept_since), f.held > now and redis.call('HGET', f.key, 'cause') or '0',
    f.live, f.dead_bytes > 0 and dead_alive(f, tonumber(ARGV[3]) * 1000000) or 0, f.answers, f.answers_before, f.answers_at, f.keys, f.keys_before, f.keys_at,
  }
  for n = 1, #figures do
    reply[#reply + 1] = figures[n]
  end
end
return reply
