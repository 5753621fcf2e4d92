-- survey: read what waits of some of a shard's tenants.
--
-- Guarantee: writes nothing. Who goes through all pages is told of every tenant that is in the index all the while, of some perhaps twice.
--
-- KEYS
--   1 clock   2 tenants
-- ARGV
--   1 instant in µs, or '' for the server's   2 cursor, '0' to begin   3 about how many tenants   4 retention of dead letters in s
-- Reply
--   now, the next cursor ('0' at the end), then per tenant: its entry in the index, depth, running, dead letters,
--   since when its oldest job could have left (0 none)
-- Derived keys: flows flow queue later returned job dead tenants
-- Channels: (none)

--! include record clock oldest

clock_load(ARGV[1])
local kept_since = now - tonumber(ARGV[4]) * 1000000

local page = redis.call('ZSCAN', KEYS[2], ARGV[2], 'COUNT', ARGV[3])
local entries, reply = page[2], { now, page[1] }
for i = 1, #entries, 2 do
  local flows = PREFIX .. 'flows:' .. string.match(entries[i], '^%S+')
  local names = redis.call('SMEMBERS', flows)
  if #names == 0 then
    absent(flows)
  end
  local depth, running, dead, oldest = 0, 0, 0, 0
  for n = 1, #names do
    local v = redis.call('HMGET', PREFIX .. 'flow:' .. names[n], 'depth', 'queued', 'running', 'dead')
    if not v[2] then
      absent(PREFIX .. 'flow:' .. names[n])
    end
    numbers(v, 4)
    depth, running = depth + v[1], running + v[3]
    dead = dead + letters_of(names[n], v[4], kept_since)
    local since, missing = oldest_of(names[n], v[1], v[2], v[3])
    if missing then
      absent(missing)
    end
    if since > 0 and (oldest == 0 or since < oldest) then
      oldest = since
    end
  end
  local filled = #reply
  reply[filled + 1], reply[filled + 2], reply[filled + 3], reply[filled + 4], reply[filled + 5] = entries[i], depth, running, dead, oldest
end
return reply
