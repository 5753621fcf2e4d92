-- record: the packed job record.
--
-- A record is a head of 65 bytes, a prefix, the payload, and the result of the last settled delivery. Numbers are big-endian,
-- instants are whole µs. The head, by first byte:
--    1 version '1'      2 state           3 epoch (4)      7 attempts (2)   9 free leases (1)  10 last outcome
--   11 call tag (4)    15 stamp (7)      22 at (7)        29 deadline (7)  36 sequence (6)     42 result length (3)
--   45 created (7)     52 max wait ms (5) 57 cost (1)     58 max attempts (2)
--   60 length of head and prefix (2)     62 payload length (4)
-- `at` is when a waiting or leased job became or becomes eligible, and when a done job ended. The prefix is the flow, the idempotency
-- hash, the type, the tenant, the route and the trace parent, each after its length in one byte, and the callback URL after its length in
-- two; it may stop after the type or any later field, and what is missing is empty. A tenant or route that the flow says is empty, too.

local byte, char, sub, floor = string.byte, string.char, string.sub, math.floor
local HEAD = 65
local UP_TO_PAYLOAD = 2111 -- the last byte any prefix may reach

local function u16(n)
  return char(floor(n / 256), n % 256)
end

local function u24(n)
  return char(floor(n / 65536), floor(n / 256) % 256, n % 256)
end

local function u32(n)
  local high = floor(n / 65536)
  return u16(high) .. u16(n - high * 65536)
end

local function u48(n)
  local high = floor(n / 16777216)
  return u24(high) .. u24(n - high * 16777216)
end

local function u56(n)
  local high = floor(n / 16777216)
  return u32(high) .. u24(n - high * 16777216)
end

local function n16(s, i)
  local a, b = byte(s, i, i + 1)
  return a * 256 + b
end

local function n24(s, i)
  local a, b, c = byte(s, i, i + 2)
  return (a * 256 + b) * 256 + c
end

local function n32(s, i)
  local a, b, c, d = byte(s, i, i + 3)
  return ((a * 256 + b) * 256 + c) * 256 + d
end

local function n56(s, i)
  return n32(s, i) * 16777216 + n24(s, i + 4)
end

-- job_read decodes the head and the start of the prefix; nil when there is no such record.
local function job_read(raw)
  if not raw or #raw <= HEAD then
    return nil
  end
  local flow_length = byte(raw, HEAD + 1)
  local idem_at = HEAD + 2 + flow_length
  local idem_length = byte(raw, idem_at)
  return {
    state = sub(raw, 2, 2),
    epoch = n32(raw, 3),
    attempts = n16(raw, 7),
    free = byte(raw, 9),
    outcome = sub(raw, 10, 10),
    tag = n32(raw, 11),
    stamp = n56(raw, 15),
    at = n56(raw, 22),
    deadline = n56(raw, 29),
    seq = n24(raw, 36) * 16777216 + n24(raw, 39),
    result = n24(raw, 42),
    created = n56(raw, 45),
    wait = byte(raw, 52) * 4294967296 + n32(raw, 53),
    cost = byte(raw, 57),
    max = n16(raw, 58),
    prefix = n16(raw, 60),
    payload = n32(raw, 62),
    flow = sub(raw, HEAD + 2, idem_at - 1),
    idem = sub(raw, idem_at + 1, idem_at + idem_length),
    raw = raw,
  }
end

-- asks_for_callback says whether a callback URL follows the first six fields of the prefix.
local function asks_for_callback(j)
  local at = HEAD + 1
  for _ = 1, 6 do
    if at > j.prefix then
      return false
    end
    at = at + 1 + byte(j.raw, at)
  end
  return at < j.prefix
end

-- job_changing encodes bytes 1 to 56 of the head: all that a script may set at admission.
local function job_changing(j)
  return '1' .. j.state .. u32(j.epoch) .. u16(j.attempts) .. char(j.free) .. j.outcome .. u32(j.tag)
    .. u56(j.stamp) .. u56(j.at) .. u56(j.deadline) .. u48(j.seq) .. u24(j.result) .. u56(j.created)
    .. char(floor(j.wait / 4294967296)) .. u32(j.wait % 4294967296)
end

-- job_head encodes the whole head.
local function job_head(j)
  return job_changing(j) .. char(j.cost) .. u16(j.max) .. u16(j.prefix) .. u32(j.payload)
end
