-- status: read one job, with its position in the queue.
--
-- Guarantee: writes nothing; the payload is not read.
--
-- KEYS
--   1 clock   2 job
-- ARGV
--   1 instant in µs, or '' for the server's   2 tenant as in keys   3 most bytes of the result
-- Reply
--   now, then 0 no such job of this tenant or 1, position (0 unless queued), estimated start (0
--   unknown), record without its payload, whose result may be cut
-- Derived keys: flow queue lines done job tenants flows wait ready reserve
-- Channels: (none)

--! needs record clock flow

clock_load(ARGV[1])
local raw = redis.call('GETRANGE', KEYS[2], '0', UP_TO_PAYLOAD)
local j = job_read(raw)
if not j or tenant_of(j.flow) ~= ARGV[2] then
  return { now, 0, 0, 0, '' }
end
local position, start = 0, 0
if j.state == 'q' or j.state == 's' or j.state == 'r' then
  position, start = estimate(flow_load(j.flow), sub(KEYS[2], #PREFIX + 5), j)
end
return { now, 1, position, start, sub(raw, 1, j.prefix) .. result_of(KEYS[2], j, tonumber(ARGV[3])) }
