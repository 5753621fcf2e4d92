-- census: read the figures of some of a shard's tenants.
--
-- Guarantee: writes nothing. Who follows the cursor to its end is told of every tenant that is known all the while, perhaps twice.
--
-- KEYS
--   1 clock   2 tenants
-- ARGV
--   1 instant in µs, or '' for the server's   2 cursor, '0' to begin   3 tenants to look at, about   4 retention of dead letters in s
-- Reply
--   now, cursor of what follows ('0' nothing), then per tenant:
--   entry in tenants, number of its flows, what the API says, what the file says, and per flow a text, its parts joined by spaces:
--   name, last, ready, held, share, spaced, full, depth, queued, running, bytes, admitted, rejected, departed, succeeded, dead,
--   cause of its hold ('0' none is known), cells ('0' none), what hinders it as lib/flow.lua writes it ('0' nothing), tier that the tenant's
--   credential claimed last after a '=', since when its oldest job could have left (0 none), dead letters that can be replayed
-- Derived keys: flow flows job policy queue later returned dead tenants
-- Channels: (none)

--! include record clock oldest

-- What is stored is passed on as it is: to make numbers of it, and to judge by the policy, costs more than to read it, and Go can do it
-- without keeping Redis from anything else. A key that is missing because its slot is on the way to another node is taken for empty: the next
-- census will find it.

local TOLD = {
  'last', 'ready', 'held', 'share', 'spaced', 'full', 'depth', 'queued', 'running', 'bytes', 'admitted', 'rejected', 'departed', 'succeeded',
  'dead', 'cause', 'cells', 'hindered',
}
local DEPTH, QUEUED, RUNNING, DEAD, TIER = 7, 8, 9, 15, 19 -- in TOLD and what is read beside it

local read = { unpack(TOLD) }
read[TIER] = 'tier'

clock_load(ARGV[1])
local kept_since = now - tonumber(ARGV[4]) * 1000000
local found = redis.call('ZSCAN', KEYS[2], ARGV[2], 'COUNT', ARGV[3])
local entries, reply, filled = found[2], { now, found[1] }, 2

for i = 1, #entries, 2 do
  local tenant = string.match(entries[i], '^%S+')
  local said = redis.call('HMGET', PREFIX .. 'policy:' .. tenant, 'api', 'file')
  local names = redis.call('SMEMBERS', PREFIX .. 'flows:' .. tenant)
  reply[filled + 1], reply[filled + 2], reply[filled + 3], reply[filled + 4] = entries[i], #names, said[1] or '', said[2] or ''
  filled = filled + 4
  for n = 1, #names do
    local name = names[n]
    local v = redis.call('HMGET', PREFIX .. 'flow:' .. name, unpack(read))
    for k = 1, #TOLD do
      v[k] = v[k] or '0'
    end
    v[TIER] = '=' .. (v[TIER] or '')
    v[TIER + 1] = string.format('%.0f', (oldest_of(name, v[DEPTH] + 0, v[QUEUED] + 0, v[RUNNING] + 0)))
    v[TIER + 2] = string.format('%d', letters_of(name, v[DEAD] + 0, kept_since))
    filled = filled + 1
    reply[filled] = name .. ' ' .. table.concat(v, ' ')
  end
end
return reply
