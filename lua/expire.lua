-- expire: the part of a poll that ends jobs which waited too long.
--
-- Guarantee: such a job takes no slot (invariant 3). Everything is read before the first write.
--
-- KEYS, ARGV, Reply: as of tick
-- Derived keys: flow queue later returned lines job idem done dead expires outbox unlock tenants
--   flows wait ready reserve
-- Channels: wake ended

--! needs clock finish poll

local ids = redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, EXPIRE_MOST)
local jobs = jobs_to_change(ids, KEYS[3])
for i = 1, #ids do
  local j = jobs[i]
  redis.call('ZREM', KEYS[3], ids[i])
  if j then
    end_waiting(ids[i], j, flows[j.flow], 'x')
  end
end
save_flows(touched, helper and horizon)
return answer(true)
