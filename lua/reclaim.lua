-- reclaim: the part of a poll that takes back expired leases.
--
-- Guarantee: the stamp of such a job stays spent, for it may have departed (invariant 2).
-- Everything is read before the first write.
--
-- KEYS, ARGV, Reply: as of tick
-- Derived keys: flow queue later returned lines job idem done dead expires outbox unlock tenants
--   flows wait ready reserve
-- Channels: wake ended

--! needs clock flow finish poll

local SWEEP_MOST = 64 -- leases that one call takes back

if unswept() or now < clock.grace then
  return answer(true)
end
local ids = redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now, 'LIMIT', 0, SWEEP_MOST)
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
    if charge_free(j) then
      f.dead = f.dead + 1
      finish(id, j, f, 'd', '')
    else
      give_back(id, j, f)
    end
  end
end
save_flows(touched, helper and horizon)
return answer(true)
