-- scan: read the settings and figures of some of a shard's tenants, or of one.
--
-- Guarantee: writes nothing. A full scan returns every tenant that is in the index all the while;
-- duplicates are possible.
--
-- KEYS
--   1 clock   2 tenants   3 policy of the one tenant to read; absent for a page of tenants
-- ARGV
--   1 instant in µs, or '' for the server's   2 cursor, '0' to begin   3 about how many tenants
--   4 retention of dead letters in s   5 about how many flows to read
--   6 cursor of the first flow of the one tenant, '0' to begin
-- Reply
--   now, cursor of the next page ('0' at the end), then per tenant:
--   entry in tenants (of one tenant its name as in keys), number of its flows, revision,
--   API overrides, file overrides, reason, cursor at which its flows go on (''
--   at the end; read them with further calls for this tenant), and per flow a text, a line for each
--   part:
--   name, last, ready, held, share, spaced, full, depth, queued, running, bytes, admitted,
--   rejected, departed, succeeded, dead, cause of its hold ('0' none), cells ('0' none), hindrance
--   and policy as lib/flow.lua writes them ('0' none), turn in its pool ('0' none), and of a pool
--   the sums of weights and of reserves as lib/pool.lua writes them, what it owes to its pool, or
--   of a pool all together, what its departures cost beyond one each, since when its oldest job
--   could have left (0 none), dead letters that can be replayed, and of one tenant the bytes
--   stored: of waiting and leased jobs, of dead letters, of answers in the current window, in the
--   window before, start of the current window, of idempotency keys the same three, of answers to
--   forwarded requests
-- Derived keys: flow flows job policy queue later returned dead kept tenants
-- Channels: (none)

--! needs record clock stored oldest

-- Stored values are passed on as they are, and no policy is resolved here: Go does that without
-- keeping Redis busy.

local FIELDS = {
  'last', 'ready', 'held', 'share', 'spaced', 'full', 'depth', 'queued', 'running', 'bytes', 'admitted', 'rejected', 'departed', 'succeeded',
  'dead', 'cause', 'cells', 'hindered', 'policy', 'turn', 'weights', 'reserves', 'owed',
  'extra',
}
local DEPTH, QUEUED, RUNNING, DEAD = 7, 8, 9, 15 -- in FIELDS
local STORED = { 'live', 'dead_bytes', 'answers', 'answers_before', 'answers_at', 'keys', 'keys_before',
  'keys_at', 'kept' }

clock_load(ARGV[1])
local retention, left = tonumber(ARGV[4]) * 1000000, tonumber(ARGV[5])

local function flow_text(name)
  local key = PREFIX .. 'flow:' .. name
  local v = redis.call('HMGET', key, unpack(FIELDS))
  if not v[QUEUED] then
    exists(key)
  end
  for k = 1, #FIELDS do
    v[k] = v[k] or '0'
  end
  local is_pool = byte(name) == 43 -- +; it has no queue of its own
  v[#FIELDS + 1] = is_pool and '0' or format('%.0f', oldest_of(name, v[DEPTH] + 0, v[QUEUED] + 0, v[RUNNING] + 0))
  v[#FIELDS + 2] = format('%d', letters_of(name, v[DEAD] + 0, now - retention))
  return name .. '\n' .. table.concat(v, '\n')
end

local function stored_text(name)
  local v = redis.call('HMGET', PREFIX .. 'flow:' .. name, unpack(STORED))
  numbers(v, #STORED)
  v[2] = v[2] > 0 and dead_alive({ name = name, dead_bytes = v[2] }, retention) or 0
  v[#STORED] = v[#STORED] > 0 and exists(PREFIX .. 'kept:' .. name) and v[#STORED] or 0
  return string.format('\n%.0f\n%.0f\n%.0f\n%.0f\n%.0f\n%.0f\n%.0f\n%.0f\n%.0f', unpack(v))
end

local PART = 64 -- flows of one page, about

-- flows_from returns some flows of a tenant from a cursor on, and where they go on.
local function flows_from(tenant, cursor)
  local index, names = PREFIX .. 'flows:' .. tenant, {}
  while left > 0 do
    local page = redis.call('SSCAN', index, cursor, 'COUNT', math.min(left, PART))
    cursor, left = page[1], left - #page[2]
    for i = 1, #page[2] do
      names[#names + 1] = page[2][i]
    end
    if cursor == '0' then
      if #names == 0 then
        exists(index)
      end
      left = left - 1 -- for the tenant
      return names, ''
    end
  end
  return names, cursor
end

local cursor, entries = '0', nil
if KEYS[3] then
  entries = { string.sub(KEYS[3], #PREFIX + 8), 0 }
else
  local page = redis.call('ZSCAN', KEYS[2], ARGV[2], 'COUNT', ARGV[3])
  cursor, entries = page[1], page[2]
end

local reply = { now, cursor }
for i = 1, #entries, 2 do
  local tenant = string.match(entries[i], '^%S+')
  local policy = redis.call('HMGET', PREFIX .. 'policy:' .. tenant, 'revision', 'api', 'file', 'reason')
  local names, goes_on = flows_from(tenant, KEYS[3] and ARGV[6] or '0')
  local n = #reply
  reply[n + 1], reply[n + 2], reply[n + 3] = entries[i], #names, tonumber(policy[1]) or 0
  reply[n + 4], reply[n + 5], reply[n + 6] = policy[2] or '', policy[3] or '', policy[4] or ''
  reply[n + 7] = goes_on
  for k = 1, #names do
    reply[n + 7 + k] = flow_text(names[k]) .. (KEYS[3] and stored_text(names[k]) or '')
  end
end
return reply
