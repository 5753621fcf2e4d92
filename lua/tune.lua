-- tune: change the settings of a tenant in one source, and the lines that its flows obey.
--
-- Guarantee: every flow of the tenant obeys at once without a burst, and no job is lost. A change
-- changes nothing if the expected revision of the tenant, or that of the shard's policies, is not
-- the one in force. The same call sent twice gets the same answer: the names of the last calls are
-- kept. A call reads all flows of the tenant, at most one for each route. What a tenant without
-- settings has left, its revision and its history, expires 90 days after its last change.
--
-- KEYS
--   1 clock   2 due   3 policy   4 history   5 flows   6 tenants   7 tuned   8 lines
-- ARGV
--   1 instant in µs, or '' for the server's
--   2 horizon in µs
--   3 revision of the shard's policies
--   4 name of the call
--   5 revision expected, '' for any; of a part the revision of the settings
--   6 source: 'api', 'file', '' where only the lines change, or 'part' in a shard that holds flows
--     of the tenant but not its settings
--   7 settings of the source, '' for none
--   8 reason   9 entry for the history   10 entry in tenants and tuned
--   11 '1' ends the holds of the tenant's flows and what they owe to their pools, or the hold of
--     the pool; '2' ends its charges, too, and what its classes owe: it gives its next stamp now.
--     Then the settings keep the reason of their last change
--   then per class of flows, none for a tenant without settings of its own: TIER/ROUTE, line as in
--   lib/policy.lua
-- Reply
--   now, 1 changed or 0 another revision of the tenant or 2 another of the shard's policies,
--   revision in force
-- Derived keys: flow later lines unlock tenants flows wait ready reserve
-- Channels: wake

--! needs clock pools policy pool flow answered filing

local MAX_HISTORY, MAX_CALLS, LINES_FROM = 100, 16, 12
local REMOVED_KEPT, DAY = 7776000, 86400 -- s: 90 days
clock_load(ARGV[1])
local horizon, source, unhold = tonumber(ARGV[2]), ARGV[6], ARGV[11] ~= '0'
local v = redis.call('HMGET', KEYS[3], 'revision', 'calls')
local revision, calls = tonumber(v[1]) or 0, v[2] or ''
if string.find(' ' .. calls .. ' ', ' ' .. ARGV[4] .. ' ', 1, true) then
  return { now, 1, revision }
end
local part = source == 'part'
if part and tonumber(ARGV[5]) < revision then
  return { now, 1, revision } -- a later change came first
elseif not part and ARGV[5] ~= '' and tonumber(ARGV[5]) ~= revision then
  return { now, 0, revision }
end
if ARGV[3] ~= clock.revision then
  return { now, 2, revision }
end
redis.call('EXISTS', KEYS[2], KEYS[4], KEYS[6], KEYS[7])
if redis.call('EXISTS', PREFIX .. 'lines', KEYS[1]) < 2 then
  error('DAMAGED policies')
end
-- A flow may obey lines that were older than the policies in force, and be in a pool of theirs. It
-- leaves that pool when it is read, so the new lines take no flow to a pool that was not read.
clock.anew = true
local flows, names = {}, redis.call('SMEMBERS', KEYS[5])
for i = 1, #names do
  flows[i] = flow_load(names[i])
  flow_known(flows[i])
  flows[i].later_before = later_known(flows[i])
  local p, tier = flows[i].pool, flows[i].policy.tier
  if p and tier ~= '' then
    redis.call('EXISTS', p.wait_index .. '/' .. tier, KEYS[1]) -- of the class that it may join
  end
end

-- The list of the last calls, this one first. One may be sent again after others.
local recent = { ARGV[4] }
for name in string.gmatch(calls, '%S+') do
  if #recent < MAX_CALLS then
    recent[#recent + 1] = name
  end
end

unlock()
if part then
  revision = ARGV[5]
  redis.call('HSET', KEYS[3], 'revision', revision, 'calls', table.concat(recent, ' '))
elseif source ~= '' then
  revision = revision + 1
  redis.call('HSET', KEYS[3], 'revision', revision, 'calls', table.concat(recent, ' '), source, ARGV[7])
  if not names_pool(ARGV[10]) then -- the index of tenants has no pools
    redis.call('ZADD', KEYS[6], now, ARGV[10])
  end
end
if source == 'api' then
  if not unhold then
    redis.call('HSET', KEYS[3], 'reason', ARGV[8])
  end
  redis.call('LPUSH', KEYS[4], ARGV[9])
  redis.call('LTRIM', KEYS[4], 0, MAX_HISTORY - 1)
end
redis.call('DEL', KEYS[8])
if #ARGV >= LINES_FROM then
  write_lines(KEYS[8], ARGV[3], LINES_FROM)
  redis.call('SADD', KEYS[7], ARGV[10])
else
  redis.call('SREM', KEYS[7], ARGV[10])
end
for k = 3, 4 do -- policy and history
  if #ARGV >= LINES_FROM or names_pool(ARGV[10]) then
    redis.call('PERSIST', KEYS[k])
  elseif part then -- before the settings: else these would begin with revision 1, which is too old here
    redis.call('EXPIRE', KEYS[k], REMOVED_KEPT - DAY)
  else
    redis.call('EXPIRE', KEYS[k], REMOVED_KEPT)
  end
end
for i = 1, #flows do
  local f = flows[i]
  local was_paused = f.policy.paused
  flow_obey(f, f.policy.tier, {})
  if was_paused and not f.policy.paused then
    f.ready = math.max(f.ready, now)
  end
  if unhold then
    f.held = math.min(f.held, now)
    if f.is_pool then
      begin_grace(f)
    elseif f.pool then
      pool_owe(f.pool, f, -f.owed)
      f.due_before = nil
    end
    if f.is_pool and ARGV[11] == '2' then
      f.ahead = 0
      pool_limit_ahead(f, 0, 0)
      for n = 1, #f.class_list do
        pool_owe(f, f.class_list[n], -f.class_list[n].owed)
      end
    end
  end
  due_save(f, f.later_before, horizon)
  flow_save(f)
end
all_answered_save()
due_flush(horizon)
clock_save()
return { now, 1, tonumber(revision) }
