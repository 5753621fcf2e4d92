-- cancel: end waiting jobs of one tenant, and delete dead ones.
--
-- Guarantee: a cancelled job never leaves, and frees its capacity at once. A second call changes
-- nothing and gets the same answer. A dead job is deleted only on request and without a pending
-- callback; a second call answers that there is no such job.
--
-- KEYS
--   1 clock   2 due   3 expires   4 outbox
--   then per job: job
-- ARGV
--   1 instant in µs, or '' for the server's
--   2 tenant as in keys
--   3 horizon in µs
--   4 '1' to delete dead jobs
--   5, 6, 7 retention in s: of finished jobs, of dead letters, of idempotency keys
--   8, 9 most dead letters of a flow, and of how many bytes
-- Reply
--   now, then per job: 0 no such job of this tenant, 1 cancelled, 2 deleted, 3 not possible in its
--   state
-- Derived keys: flow queue later returned lines job idem done dead expires outbox unlock tenants
--   flows wait ready reserve
-- Channels: wake ended

--! needs record clock stored flow finish

local ABSENT, CANCELLED, DELETED, CONFLICT = 0, 1, 2, 3
clock_load(ARGV[1])
local tenant, horizon, delete_dead = ARGV[2], tonumber(ARGV[3]), ARGV[4] == '1'
retention_of(ARGV[5], ARGV[6], ARGV[7], ARGV[8], ARGV[9])

-- Read.
redis.call('EXISTS', KEYS[2], KEYS[3], KEYS[4])
local flows, touched, jobs, read, reply = {}, {}, {}, {}, { now }
for k = 5, #KEYS do
  local id = sub(KEYS[k], #PREFIX + 5)
  local j = read[id] or job_read(redis.call('GETRANGE', KEYS[k], '0', UP_TO_PAYLOAD))
  local code = CONFLICT
  if not j or tenant_of(j.flow) ~= tenant or is_dead_letter(j) and not exists(PREFIX .. 'flow:' .. j.flow) then
    code = ABSENT -- a dead letter whose flow was forgotten is past its retention
  elseif j.state == 'c' or j.state == 'q' or j.state == 's' or j.state == 'r' then
    code = CANCELLED
  elseif is_dead_letter(j) and delete_dead and not redis.call('ZSCORE', KEYS[4], id) then
    code = DELETED
  end
  reply[#reply + 1] = code
  if not read[id] and (code == DELETED or code == CANCELLED and j.state ~= 'c') then
    if not flows[j.flow] then
      local f = flow_load(j.flow, nil, {})
      if code == CANCELLED then
        flow_known(f)
        later_known(f)
      end
      flow_reach(f)
      f.later_before = later_head(f)
      flows[j.flow] = f
      touched[#touched + 1] = f
    end
    finish_reads(j)
    j.id, read[id] = id, j
    jobs[#jobs + 1] = j
  end
end
if #jobs == 0 then
  return reply
end

-- Write.
unlock()
for i = 1, #jobs do
  local j = jobs[i]
  local f = flows[j.flow]
  if j.state == 'd' then
    redis.call('DEL', PREFIX .. 'job:' .. j.id)
    redis.call('ZREM', PREFIX .. 'dead:' .. f.name, j.id)
    dead_left(f, j, retention.dead_capacity, retention.dead_bytes)
  else
    end_waiting(j.id, j, f, 'c')
  end
end
save_flows(touched, horizon)
clock_save()
return reply
