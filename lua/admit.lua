-- admit: admit 1 to 1,000 jobs of one shard, or refuse them.
--
-- Guarantee: no admission takes a flow's depth above its capacity, and a job is refused as full
-- only if depth + size > capacity at this script's instant (invariant 1). It is refused as full of
-- bytes only if the payloads of the flow and of the job or batch exceed that bound, and as over its
-- share only if they and all else that is stored of the flow exceed that. A job whose id is stored
-- was admitted by an earlier sending of this call and gets the same answer (invariant 7). An
-- idempotency key makes one job, also within a call. Redis refuses the first write at maxmemory, so
-- the call fails there with nothing changed (invariant 9). Once a minute of a flow it subtracts
-- what Redis has expired of it, and of another flow of its tenant.
--
-- KEYS
--   1 clock   2 due   3 expires   4 tenants
--   then per flow: flow, queue, later, lines, flows
--   then per job: job, and idem if the job has an idempotency key
-- ARGV
--   1 instant in µs, or '' for the server's
--   2 horizon in µs
--   3 '1' for all or none
--   4 number of flows
--   5 what the store accepts no more: letters, b bytes, t tenants that are not in the index
--   6 four numbers: the share, which is the bytes that may be stored of a flow, 0 for no bound;
--     retention in s of finished jobs, of dead letters, of idempotency keys
--   then per flow: tier that the tenant's credential claims or '', entry in tenants, and '' or the
--   class that the tenant shares a part of the store with, if it has no settings of its own. It is
--   what the class may store no more, b or t as above, a colon, the share of the flow in bytes, 0
--   for that of any flow, a colon, and its name. The name - is no class, but all tenants without
--   settings of their own. Last 1 if the costs of the flow's jobs are estimates: then a max wait
--   refuses only what could not leave in time at a sixteenth of them
--   then per job: its request, and the record from its cost on. The request begins with the number
--   of the flow, which is all that most jobs need. Otherwise follow, after a blank each: delay in
--   µs, max wait in ms (0: the policy's), and the hash and the fingerprint of an idempotency key.
--   Before all of it may stand =, the hash of the job's type and a blank; the call fails with TYPES
--   are needed, with nothing changed, where a policy has types and a job has none
-- Reply
--   now, then an array per flow: limit and period in µs of its strictest pace, capacity, capacity
--   in bytes, time to next free capacity in µs, and where a job was over its share the bytes that
--   were stored of the flow, and its share; behind these, or two zeros, 1 where the tenant is new
--   in the index, else 0, and the number of tenants of its class in the shard;
--   then an array with four numbers per job: depth, bytes, position, estimated start (3, 7: when
--   all that are queued have left);
--   then an array with an array of details for each job that was not admitted into the queue by
--   this call: its number, outcome, state or '', retry after in µs, created, value of its key or
--   ''. Where there is no capacity the value is the number of jobs and of bytes that needed it, and
--   0 if they never fit, 1 if retry after is exact, 2 if it is an estimate; where its pool is full
--   also depth, capacity, bytes and capacity in bytes of that, or of the part of it that the flow
--   may hold. Where it costs too much, the value is its cost and the max cost. The answer to an
--   atomic batch that is refused describes the first job that was refused, and ends with the
--   numbers of that job's flow and of the job. outcome (1 admitted, 2 replayed, 3 full, 4 deadline
--   unreachable, 5 key reused, 6 draining, 7 full of bytes, 8 store full, 9 over share, 10 pool
--   full, 11 pool full of bytes, 12 part full, 13 part full of bytes, 14 too costly, 15 pool too
--   costly, 16 class store full, 17 denied, 18 type denied); class is the part of the store that
--   the flow's class may use, part that of the pool which the flow may hold
-- Derived keys: flow queue later lines dead done job tenants flows kept wait ready reserve class
-- Channels: wake

--! needs record clock stored flow filing admission batch decide admitted

-- An atomic batch needs capacity for all its jobs that were not admitted before.
local twins = {}
for a = first_arg, atomic and #ARGV or 0, 2 do
  local k = twins.k or first_key
  local key, f, _, _, hash = KEYS[k], asks_for(ARGV[a])
  local keyed = hash ~= ''
  local twin = twins[key] or keyed and twins[KEYS[k + 1]] -- a key makes one job, also within a call
  if not twin and (all_new or stored(key) == '' and not (keyed and redis.call('GET', KEYS[k + 1]))) then
    local p, payload = f.pool, n32(ARGV[a + 1], PAYLOAD_AT - COST_AT + 1)
    f.asked, f.asked_bytes = f.asked + 1, f.asked_bytes + payload
    if p then
      p.asked, p.asked_bytes = p.asked + 1, p.asked_bytes + payload
    end
  end
  twins[key], twins.k = true, k + (keyed and 2 or 1)
  if keyed then
    twins[KEYS[k + 1]] = true
  end
end

-- Decide, in memory only.
for i = 1, atomic and flow_count or 0 do
  flows[i].next_before = next_slot(flows[i])
end
local k = first_key
for a = first_arg, #ARGV, 2 do
  local f, delay, wait, hash, print, kind = numbered[ARGV[a]], 0, 0, ''
  if not f then
    f, delay, wait, hash, print, kind = asks_for(ARGV[a])
  end
  decide(k, f, delay, wait, hash, print, kind, ARGV[a + 1])
  k = k + (hash ~= '' and 2 or 1)
  if refusal and atomic then
    break
  end
end
if refusal and atomic then
  -- The reply describes the flow as it was read.
  local f, last = refusal, details[#details]
  replies[f.number][5] = f.next_before
  if last[2] ~= REUSED and not f.fresh then
    local count = (#ARGV - first_arg + 1) / 2
    redis.call('HINCRBY', f.key, 'rejected', count)
    clock.rejected = clock.rejected - 1 + count
    clock_save()
  end
  last[1] = 1
  return { now, replies, { f.depth_before, f.bytes_before, decisions[written - 1], decisions[written] },
    { last }, f.number, written / 4 }
end
local siblings = {} -- by name
for i = 1, flow_count do
  local f = flows[i]
  siblings[f.name] = false
  admitted_count(f)
  replies[i][5] = next_slot(f)
end

for i = 1, flow_count do
  local f = flows[i]
  local other = f.looks and f.touched and f.sibling
  if other and siblings[other.name] == nil then
    lapsed_count(other)
    siblings[other.name] = other
  end
end

-- Write.
-- First the keys that were not read: one of a wrong type fails the call before anything is counted.
for i = 1, #flows do
  local f = flows[i]
  if f.touched then
    admitted_file(f)
  end
end
if #deadlines > 0 then
  in_parts('ZADD', KEYS[3], deadlines, 1)
  wake_for(first_deadline + horizon, horizon)
end
in_parts('MSET', nil, records, 1)
local saved = false
for i = 1, #flows do
  local f = flows[i]
  if f.touched then
    if f.looks then
      lapsed_trim(f, keep_dead)
    end
    due_save(f, f.later_before, horizon)
    flow_save(f)
    saved = true
  end
  if f.class then
    local r = replies[f.number]
    r[6], r[7], r[8], r[9] = r[6] or 0, r[7] or 0, r[8] or 0, redis.call('SCARD', PREFIX .. 'class:' .. f.class)
  end
end
for _, other in pairs(siblings) do
  if other then
    redis.call('HSET', other.key, 'dead_bytes', format('%d', other.dead_bytes))
    lapsed_trim(other, FARTHEST)
  end
end
if saved then
  due_flush(horizon, true)
end
return { now, replies, decisions, details }
