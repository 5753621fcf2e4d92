-- expire: the part of a poll that ends jobs which waited too long.
--
-- Guarantee: such a job takes no slot (invariant 3). Everything is read before the first write.
--
-- KEYS
--   as of tick
-- ARGV
--   as of tick
-- Reply
--   as of tick
-- Derived keys: flow queue later returned lines job idem done dead outbox unlock tenants
-- Channels: sluice:wake sluice:done

--! include record clock policy bucket stored flow finish poll

-- expire ends a waiting job whose max wait is over; it takes no slot.
local function expire(id, j, f)
  redis.call('ZREM', KEYS[3], id)
  if j.state == 'q' then
    redis.call('ZREM', PREFIX .. 'queue:' .. f.name, id)
    dequeue(f, j.cost)
  elseif j.state == 's' or j.state == 'r' then
    redis.call('ZREM', PREFIX .. 'later:' .. f.name, id)
  else
    return
  end
  leave_place(f, j)
  finish(id, j, f, 'x', '')
end

local function expire_all(ids)
  local jobs = jobs_to_change(ids, KEYS[3])
  for i = 1, #ids do
    if jobs[i] then
      expire(ids[i], jobs[i], flows[jobs[i].flow])
    else
      redis.call('ZREM', KEYS[3], ids[i])
    end
  end
  for i = 1, #touched do
    touched[i].later_before = later_head(touched[i])
  end
  save_touched()
end

expire_all(redis.call('ZRANGEBYSCORE', KEYS[3], '-inf', now, 'LIMIT', 0, EXPIRE_MOST))
return answer(true)
