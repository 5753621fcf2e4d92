-- restore: carry on after a failover that lost the last writes of a shard.
--
-- A poll that finds another replication id than the shard's, or than the worker's, needs this
-- script. The first call stores the id, wakes all workers, and pauses the shard until they have
-- made theirs. A shard without an id, of which the worker remembers nothing, is new: it is not
-- paused.
--
-- Guarantee: the shard's clock continues from the instant that a worker has seen, and each flow,
-- with its pool, from the stamp that the worker has had of it (invariants 2 and 8). Its paces count
-- as used up at that stamp: what they had left of a burst was lost. Where nothing was lost, or when
-- the call is sent again, it changes nothing. Everything is read before the first write.
--
-- KEYS
--   1 clock   2 due   3 tenants
-- ARGV
--   1 instant in µs, or '' for the server's   2 instant that the worker has seen, 0 for none
--   3 horizon in µs   4 pause in µs
--   then per flow: name, last stamp, cost of the job that had it, entry in tenants
-- Reply
--   now, number of flows that had lost a stamp, replication id ('' if Redis names none), 1 if this
--   call is the first after another master or a restart, else 0
-- Derived keys: flow flows later lines tenants unlock wait ready reserve
-- Channels: wake

--! needs clock pools bucket flow filing

local FLOWS_FROM = 5
clock_load(ARGV[1])
local horizon, seen = tonumber(ARGV[3]), tonumber(ARGV[2])
local behind = now < seen
if behind then
  if now < clock.resumes then
    clock.resumes = clock.resumes + seen - now
  end
  clock.off, now = clock.off + seen - now, seen
end
local met = replication_id()
local unknown = met and met ~= clock.replid
local other = unknown and clock.replid ~= '' and 1 or 0
if unknown and (clock.replid ~= '' or seen > 0) then
  clock.resumes = now + tonumber(ARGV[4])
end

-- use_up moves a bucket on to a stamp that it does not know, and its paces as far as a job with
-- this cost can have left them.
local function use_up(f, stamp, cost)
  for i = 1, #f.cells do
    local c = f.cells[i]
    local used = { limit = c.limit, period = c.period, tat = stamp, rem = 0 }
    cell_move(used, c.burst - 1 + charged(c, 1, cost))
    if used.tat > c.tat then
      c.tat, c.rem, c.credit = used.tat, used.rem, nil
    end
  end
  f.last, f.moved = stamp, true
end

local flows, entries, known = {}, {}, {}
for a = FLOWS_FROM, #ARGV, 4 do
  local stamp, cost, f = tonumber(ARGV[a + 1]), tonumber(ARGV[a + 2]), flow_load(ARGV[a], nil, known)
  local p = f.pool
  -- Several jobs of a pool may have one stamp, each of another flow.
  if p and (p.last < stamp or p.last == stamp and p.used_up) then
    use_up(p, stamp, cost)
    p.used_up = true
  end
  if f.last < stamp then
    f.later_before = later_known(f)
    use_up(f, stamp, cost)
    flows[#flows + 1], entries[#entries + 1] = f, ARGV[a + 3]
  end
end
local changes = behind or #flows > 0 or #pool_list > 0
if not changes and not unknown then
  return { now, 0, met or '', other }
end
redis.call('EXISTS', KEYS[1], KEYS[2], KEYS[3])
in_parts('EXISTS', KEYS[1], known, 1)
unlock()
for i = 1, #flows do
  local f = flows[i]
  if f.fresh then
    redis.call('SADD', PREFIX .. 'flows:' .. tenant_of(f.name), f.name)
    redis.call('ZADD', KEYS[3], now, entries[i])
  end
  due_save(f, f.later_before, horizon)
  flow_save(f)
end
due_flush(horizon, changes or clock.last == 0)
redis.call('HSET', KEYS[1], 'replid', met or clock.replid, 'resumes', format('%d', clock.resumes))
if unknown then
  publish('wake', 'restore')
end
return { now, #flows, met or '', other }
