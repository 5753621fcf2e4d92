-- reclaim: the part of a poll that takes back expired leases.
--
-- Guarantee: the stamp of such a job stays spent, for it may have departed (invariant 2). A request
-- whose answer had begun to reach its client is not sent again: it has failed for good. Everything
-- is read before the first write.
--
-- KEYS, ARGV, Reply: as of tick
-- Derived keys: flow queue later returned lines job idem done dead expires outbox unlock tenants
--   flows wait ready reserve stream beyond
-- Channels: wake ended

--! needs clock flow finish poll

local SWEEP_MOST = 64 -- leases that one call takes back
local LINGERS = 30 -- s for which the parts of an answer that broke off are there for its readers

-- relayed returns how many bytes of the answer to a job were passed on, nil if none had begun.
local function relayed(id)
  local stored, beyond = PREFIX .. 'stream:' .. id, PREFIX .. 'beyond:' .. id
  if redis.call('EXISTS', stored, beyond) == 0 then
    return nil
  end
  local last = redis.call('XREVRANGE', beyond, '+', '-', 'COUNT', 1)[1]
    or redis.call('XREVRANGE', stored, '+', '-', 'COUNT', 1)[1]
  return last and last[2][2] or '0'
end

if unswept() or now < clock.grace then
  return answer(true)
end
local ids = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, SWEEP_MOST)
local begun = {}
for i = 1, #ids do
  begun[ids[i]] = relayed(ids[i])
end
local jobs = jobs_to_change(ids, KEYS[4])
if ids[1] then
  redis.call('ZREM', KEYS[4], unpack(ids))
end
for i = 1, #ids do
  local id, j = ids[i], jobs[i]
  if j and j.state == 'l' then
    local f = flows[j.flow]
    run(f, -1)
    redis.call('HINCRBY', KEYS[1], 'lapsed', 1)
    j.outcome = 'x'
    if begun[id] then
      j.outcome, j.attempts, f.dead = 'f', j.attempts + 1, f.dead + 1
      finish(id, j, f, 'd', format('{"e":{"message":"the answer broke off after %s bytes",'
        .. '"detail":"its worker was not heard of in time"}}', begun[id]))
      redis.call('EXPIRE', PREFIX .. 'stream:' .. id, LINGERS)
      redis.call('EXPIRE', PREFIX .. 'beyond:' .. id, LINGERS)
    elseif charge_free(j) then
      f.dead = f.dead + 1
      finish(id, j, f, 'd', '')
    else
      give_back(id, j, f)
    end
  end
end
save_flows(touched, helper and horizon)
return answer(true)
