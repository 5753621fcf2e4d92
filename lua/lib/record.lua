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
-- A number that goes to Redis is written out digit by digit: where it is always the same, it stands here as text.
local UP_TO_PAYLOAD = '2110' -- the place of the last byte that any prefix may reach

-- About what Redis keeps beside the text of a record and of an idempotency key: names, table entries, the place in an index.
local RECORD_BYTES, KEY_BYTES = 256, 256

local ZERO3 = '\0\0\0'
local ZERO4 = '\0\0\0\0'
local ZERO5 = '\0\0\0\0\0'
local ZERO7 = '\0\0\0\0\0\0\0'

-- A string is made in one step: each piece that is joined to another is one more that Lua must keep.

local function u16(n)
  local b = n % 256
  return char((n - b) / 256, b)
end

local function u24(n)
  if n == 0 then
    return ZERO3
  end
  local c = n % 256
  n = (n - c) / 256
  local b = n % 256
  return char((n - b) / 256, b, c)
end

local function u32(n)
  if n == 0 then
    return ZERO4
  end
  local d = n % 256
  n = (n - d) / 256
  local c = n % 256
  n = (n - c) / 256
  local b = n % 256
  return char((n - b) / 256, b, c, d)
end

local function u48(n)
  local low = n % 16777216
  return u24((n - low) / 16777216) .. u24(low)
end

local function u56(n)
  if n == 0 then
    return ZERO7
  end
  local g = n % 256
  n = (n - g) / 256
  local f = n % 256
  n = (n - f) / 256
  local e = n % 256
  n = (n - e) / 256
  local d = n % 256
  n = (n - d) / 256
  local c = n % 256
  n = (n - c) / 256
  local b = n % 256
  return char((n - b) / 256, b, c, d, e, f, g)
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
  local a, b, c, d, e, f, g = byte(s, i, i + 6)
  return (((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f) * 256 + g
end

-- job_read decodes the head and the start of the prefix; nil when there is no such record.
local function job_read(raw)
  if not raw or #raw <= HEAD then
    return nil
  end
  local _, state, e1, e2, e3, e4, a1, a2, free, outcome, t1, t2, t3, t4, s1, s2, s3, s4, s5, s6, s7, i1, i2, i3, i4, i5, i6, i7,
    d1, d2, d3, d4, d5, d6, d7, q1, q2, q3, q4, q5, q6, r1, r2, r3, c1, c2, c3, c4, c5, c6, c7, w1, w2, w3, w4, w5, cost, m1, m2,
    p1, p2, l1, l2, l3, l4, flow_length = byte(raw, 1, HEAD + 1)
  local idem_at = HEAD + 2 + flow_length
  local idem_length = byte(raw, idem_at)
  return {
    state = char(state),
    epoch = ((e1 * 256 + e2) * 256 + e3) * 256 + e4,
    attempts = a1 * 256 + a2,
    free = free,
    outcome = char(outcome),
    tag = ((t1 * 256 + t2) * 256 + t3) * 256 + t4,
    stamp = (((((s1 * 256 + s2) * 256 + s3) * 256 + s4) * 256 + s5) * 256 + s6) * 256 + s7,
    at = (((((i1 * 256 + i2) * 256 + i3) * 256 + i4) * 256 + i5) * 256 + i6) * 256 + i7,
    deadline = (((((d1 * 256 + d2) * 256 + d3) * 256 + d4) * 256 + d5) * 256 + d6) * 256 + d7,
    seq = ((((q1 * 256 + q2) * 256 + q3) * 256 + q4) * 256 + q5) * 256 + q6,
    result = (r1 * 256 + r2) * 256 + r3,
    created = (((((c1 * 256 + c2) * 256 + c3) * 256 + c4) * 256 + c5) * 256 + c6) * 256 + c7,
    wait = (((w1 * 256 + w2) * 256 + w3) * 256 + w4) * 256 + w5,
    cost = cost,
    max = m1 * 256 + m2,
    prefix = p1 * 256 + p2,
    payload = ((l1 * 256 + l2) * 256 + l3) * 256 + l4,
    flow = sub(raw, HEAD + 2, idem_at - 1),
    idem = idem_length == 0 and '' or sub(raw, idem_at + 1, idem_at + idem_length),
    type_at = idem_at + 1 + idem_length,
    raw = raw,
  }
end

-- key_bytes is what the idempotency key of a job takes in Redis; its name repeats the flow's.
local function key_bytes(j)
  return j.idem == '' and 0 or KEY_BYTES + #j.flow
end

-- job_bytes is what a job takes in Redis while it is waiting, leased or dead.
local function job_bytes(j)
  return RECORD_BYTES + j.prefix + j.payload + j.result + key_bytes(j)
end

-- asks_for_callback says whether a callback URL follows the first six fields of the prefix, of which the type is the third.
local function asks_for_callback(j)
  local at, raw, prefix = j.type_at, j.raw, j.prefix
  for _ = 3, 6 do
    if at > prefix then
      return false
    end
    at = at + 1 + byte(raw, at)
  end
  return at < prefix
end

-- job_succeeding decodes what settle needs of a job without idempotency key and callback to end it well; nil of any other. It has eight fields,
-- for a table of nine takes twice as much.
local function job_succeeding(raw)
  if #raw <= HEAD then
    return nil
  end
  local state, e1, e2, e3, e4, a1, a2, _, outcome = byte(raw, 2, 10)
  local p1, p2, _, _, _, _, flow_length = byte(raw, 60, HEAD + 1)
  local idem_at = HEAD + 2 + flow_length
  if byte(raw, idem_at) ~= 0 then
    return nil
  end
  local j = {
    state = char(state), epoch = ((e1 * 256 + e2) * 256 + e3) * 256 + e4, attempts = a1 * 256 + a2, outcome = char(outcome),
    prefix = p1 * 256 + p2, flow = sub(raw, HEAD + 2, idem_at - 1), type_at = idem_at + 1, raw = raw,
  }
  return not asks_for_callback(j) and j or nil
end

-- job_new is the record of a new job: bytes 1 to 56 of the head, and the rest. What jobs that are queued at once have before and after
-- their sequence is the same, while that has no more than three bytes.
local queued_at, before_seq, after_seq = -1, '', ''
local function job_new(state, at, deadline, seq, created, wait, rest)
  if state == 'q' and at == created and deadline == 0 and wait == 0 and seq < 16777216 then
    if queued_at ~= at then
      local instant = u56(at)
      queued_at, before_seq, after_seq = at, '1q' .. ZERO7 .. '-' .. ZERO4 .. ZERO7 .. instant .. ZERO7 .. ZERO3, ZERO3 .. instant .. ZERO5
    end
    return before_seq .. u24(seq) .. after_seq .. rest
  end
  local low = wait % 4294967296
  return '1' .. state .. ZERO7 .. '-' .. ZERO4 .. ZERO7 .. u56(at) .. u56(deadline) .. u48(seq) .. ZERO3 .. u56(created)
    .. char((wait - low) / 4294967296) .. u32(low) .. rest
end

-- job_head encodes the whole head of a job that was read: when it was made, how long it may wait and its cost never change.
local function job_head(j)
  return '1' .. j.state .. u32(j.epoch) .. u16(j.attempts) .. char(j.free) .. j.outcome .. u32(j.tag) .. u56(j.stamp) .. u56(j.at)
    .. u56(j.deadline) .. u48(j.seq) .. u24(j.result) .. sub(j.raw, 45, 57) .. u16(j.max) .. sub(j.raw, 60, 61) .. u32(j.payload)
end

-- job_leased encodes bytes 2 to 21 of the head, which are all that the lease of a queued job changes.
local stamp_high, h1, h2, h3, h4 = -1, 0, 0, 0, 0 -- the first bytes of a stamp, which stamps of a look share
local function job_leased(epoch, raw, stamp)
  local low = stamp % 16777216
  local high = (stamp - low) / 16777216
  if high ~= stamp_high then
    stamp_high, h1, h2, h3, h4 = high, byte(u32(high), 1, 4)
  end
  local s3 = low % 256
  local s2 = (low - s3) / 256 % 256
  local e4 = epoch % 256
  epoch = (epoch - e4) / 256
  local e3 = epoch % 256
  epoch = (epoch - e3) / 256
  local e2 = epoch % 256
  local a1, a2, free, outcome, t1, t2, t3, t4 = byte(raw, 7, 14)
  return char(108, (epoch - e2) / 256, e2, e3, e4, a1, a2, free, outcome, t1, t2, t3, t4, h1, h2, h3, h4, (low - s2 * 256 - s3) / 65536, s2, s3)
end

-- job_ended is the record of a job that ends without its payload; ended is its instant and no deadline, encoded, most its max attempts, 0 for
-- those it has. It takes what job_succeeding has read, too.
local function job_ended(j, ended, result, most)
  local raw, attempts = j.raw, j.attempts
  local low = attempts % 256
  return '1' .. j.state .. sub(raw, 3, 6) .. char((attempts - low) / 256, low, j.free or byte(raw, 9)) .. j.outcome .. sub(raw, 11, 21) .. ended
    .. (j.seq and u48(j.seq) or sub(raw, 36, 41)) .. u24(#result)
    .. (most > 0 and sub(raw, 45, 57) .. u16(most) .. sub(raw, 60, 61) or sub(raw, 45, 61)) .. ZERO4
    .. sub(raw, HEAD + 1, j.prefix) .. result
end
