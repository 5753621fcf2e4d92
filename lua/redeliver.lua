-- redeliver: the part of a poll that hands over a grant again whose reply the worker has not seen.
--
-- Guarantee: the grant is handed over unchanged while its first stamp of a flow is at most slack
-- before now + lead (invariant 7). Otherwise it is stamped anew in order. It is given back to the
-- queue if later stamps were given since, or if the flow has become too slow, held or paused.
-- Everything is read before the first write.
--
-- KEYS, ARGV, Reply: as of tick
-- Derived keys: flow queue later returned lines job done dead expires unlock tenants flows wait
--   ready reserve
-- Channels: wake

--! needs record clock bucket turn pool flow finish poll

local grant = redis.call('GET', KEYS[5])
local given = granted(grant)
if not given or given == seen then
  return answer(true)
end
if given > counter then
  return outdated()
end

-- Jobs that are no longer leased under the grant are left out.
local by_flow, order = {}, {}
for id, epoch in string.gmatch(grant, '\n(%S+) (%d+)') do
  local raw = record_of(id)
  if not raw then
    exists(JOB .. id)
  end
  local j = job_read(raw)
  -- The lease of a job of a damaged flow expires.
  if j and j.state == 'l' and j.epoch == tonumber(epoch)
    and attempt('flow ' .. j.flow, flow_reached, j.flow) then
    j.id, j.record = id, raw
    if not by_flow[j.flow] then
      by_flow[j.flow] = {}
      order[#order + 1] = j.flow
    end
    table.insert(by_flow[j.flow], j)
  end
end
redis.call('EXISTS', KEYS[4])
start_writing()
for n = 1, #order do
  local f, list = flows[order[n]], by_flow[order[n]]
  local first, last, cost = list[1].stamp, list[#list].stamp, 0
  for i = 1, #list do
    cost = cost + list[i].cost
  end
  local late = first < from - SLACK
  local anew = late and last == f.last and not f.pool -- a pool's slot that is over is lost
  local back = late and not anew
  if anew then
    rewind(f, first, #list, cost)
  end
  for i = 1, #list do
    local j = list[i]
    if anew then
      local stamp = stamp_of(f, j.at, from)
      back = back or f.policy.paused or stamp > now + horizon
      -- If this is an old call that arrives after its answer, the job has departed: its slot stays
      -- spent.
      j.stamp = back and math.max(f.last, j.stamp) or stamp
      depart(f, j.stamp, 1, j.cost)
    end
    if back then
      if f.pool then
        local charge = pool_charge_of(f.pool, j.cost, j.stamp)
        turn_correct(f, charge, 0, j.stamp < f.ready) -- its turn is still to come
        count_cost(f, 1 - charge)
      end
      run(f, -1)
      count_departed(f, -1)
      j.outcome = 'R'
      give_back(j.id, j, f)
      redis.call('ZREM', KEYS[4], j.id)
    else
      redis.call('SETRANGE', JOB .. j.id, 0, job_head(j))
      redis.call('ZADD', KEYS[4], math.max(now, j.stamp) + lease, j.id)
      hand_out(j)
    end
  end
end
save_flows(touched, helper and horizon)
reply[COUNTER] = given
return answer(true)
