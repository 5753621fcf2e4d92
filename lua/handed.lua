-- handed: acknowledge completions that were handed over, and remove them from the outbox.
--
-- Guarantee: only the end of a job that was handed over is removed, not a later one of the same
-- job. A second call changes nothing. From then on the usual retention applies to the job.
--
-- KEYS
--   1 clock   2 outbox
--   then per job: job
-- ARGV
--   1 instant in µs, or '' for the server's
--   2, 3 retention in s: of finished jobs, of dead letters
--   then per job: epoch, state
-- Reply
--   now, then per job: 1 removed, 0 not in the outbox with this end
-- Derived keys: unlock tenants
-- Channels: (none)

--! needs record clock

clock_load(ARGV[1])
redis.call('EXISTS', KEYS[2])
local keep = { ['d'] = tonumber(ARGV[3]) }
local reply, taken = { now }, {}
for k = 3, #KEYS do
  local a = 3 + (k - 3) * 2
  local id = string.sub(KEYS[k], #PREFIX + 5)
  local j = job_read(redis.call('GETRANGE', KEYS[k], '0', UP_TO_PAYLOAD))
  reply[#reply + 1] = 0
  if j and j.epoch == tonumber(ARGV[a + 1]) and j.state == ARGV[a + 2]
    and redis.call('ZSCORE', KEYS[2], id) then
    reply[#reply] = 1
    taken[#taken + 1] = { key = KEYS[k], id = id, keep = keep[j.state] or tonumber(ARGV[2]) }
  end
end
if #taken > 0 then
  unlock()
end
for i = 1, #taken do
  redis.call('ZREM', KEYS[2], taken[i].id)
  redis.call('EXPIRE', taken[i].key, taken[i].keep)
end
return reply
