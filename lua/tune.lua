-- tune: change what one source says of a tenant's policy.
--
-- Guarantee: every flow of the tenant obeys at once and never bursts at it; the depth keeps its jobs. A change made against another
-- revision than the one in force changes nothing. The same call sent twice is answered alike: the
-- names of the last ones are kept.
--
-- KEYS
--   1 clock   2 due   3 policy   4 history   5 flows   6 tenants   7 filed
-- ARGV
--   1 instant in µs, or '' for the server's   2 horizon in µs   3 baseline   4 name of the call
--   5 revision expected, '' for any   6 source: 'api' or 'file'   7 what the source says, '' for nothing
--   8 the settings of all sources as in policy_of   9 reason   10 entry for the history   11 entry in tenants and filed
--   12 '1' ends the holds of the tenant's flows; then the settings keep the reason of their last change
-- Reply
--   now, 1 changed or 0 another revision, revision in force
-- Derived keys: flow later policy unlock tenants
-- Channels: sluice:wake

--! include record clock policy bucket flow

local HISTORY_KEPT, CALLS_KEPT = 100, 16
clock_load(ARGV[1])
local horizon = tonumber(ARGV[2])
local v = redis.call('HMGET', KEYS[3], 'revision', 'calls')
local revision, calls = tonumber(v[1]) or 0, v[2] or ''
if string.find(' ' .. calls .. ' ', ' ' .. ARGV[4] .. ' ', 1, true) then
  return { now, 1, revision }
end
if ARGV[5] ~= '' and tonumber(ARGV[5]) ~= revision then
  return { now, 0, revision }
end
redis.call('EXISTS', KEYS[2], KEYS[4], KEYS[6], KEYS[7])
local flows, names = {}, redis.call('SMEMBERS', KEYS[5])
for i = 1, #names do
  flows[i] = flow_load(names[i], ARGV[3])
  flow_known(flows[i])
  flows[i].later_before = later_known(flows[i])
end

-- recent is the list of the last calls with this one before them: one of them may be sent again after others came between.
local function recent(names)
  local kept = { ARGV[4] }
  for name in string.gmatch(names, '%S+') do
    if #kept < CALLS_KEPT then
      kept[#kept + 1] = name
    end
  end
  return table.concat(kept, ' ')
end

unlock()
redis.call('HSET', KEYS[3], 'revision', revision + 1, 'calls', recent(calls), 'eff', ARGV[8], ARGV[6], ARGV[7])
if ARGV[6] == 'api' then
  if ARGV[12] ~= '1' then
    redis.call('HSET', KEYS[3], 'reason', ARGV[9])
  end
  redis.call('LPUSH', KEYS[4], ARGV[10])
  redis.call('LTRIM', KEYS[4], 0, HISTORY_KEPT - 1)
elseif ARGV[7] ~= '' then
  redis.call('SADD', KEYS[7], ARGV[11])
else
  redis.call('SREM', KEYS[7], ARGV[11])
end
redis.call('ZADD', KEYS[6], now, ARGV[11])
for i = 1, #flows do
  local f = flows[i]
  local was_paused = f.policy.paused
  f.policy = policy_of(ARGV[3], ARGV[8], f.tier, route_of(f.name))
  retune(f)
  if was_paused and not f.policy.paused then
    f.ready = max(f.ready, now)
  end
  if ARGV[12] == '1' then
    f.held = min(f.held, now)
  end
  flow_save(f)
  due_save(f, f.later_before, horizon)
end
due_flush()
clock_save()
return { now, 1, revision + 1 }
