-- record: the packed job record.
--
-- A record is a head, a prefix, the payload, and the result of the last settled delivery. layout.go
-- lays out the head, names the first and the last byte of each field, such as EPOCH_AT and
-- EPOCH_END, and makes the functions that encode and decode them. The prefix is the flow, the
-- idempotency hash, the type, the tenant, the route and the trace parent, each after its length in
-- one byte, and the callback URL after its length in two. It may stop after the type or any later
-- field; missing fields are empty. So are a tenant and a route that equal those in the flow.

-- Lua formats each number that goes to Redis, so a constant one is text.
local UP_TO_PAYLOAD = '2193' -- the offset of the last byte that any prefix may have

-- About the bytes that Redis needs for a record and an idempotency key beside their text: names,
-- table entries, index entries.
local RECORD_BYTES, KEY_BYTES = 256, 256

-- Bytes of a payload to which a result is appended. Then Redis allocates as many bytes again for
-- the record, up to SPARE_MOST. To write a payload of 240 KB again took it 5 ms, most of it for the
-- append-only file: a burst of them that failed cost others of the shard all departures for 1.5 s.
local APPEND_FROM, SPARE_MOST = 16384, 1048576

local ZERO3 = '\0\0\0'
local ZERO4 = '\0\0\0\0'
local ZERO5 = '\0\0\0\0\0'
local ZERO7 = '\0\0\0\0\0\0\0'

-- job_read decodes the head and the start of the prefix; nil when there is no such record.
local function job_read(raw)
  if not raw or #raw <= HEAD then
    return nil
  end
  local j = head_read(raw)
  local idem_at = HEAD + 2 + byte(raw, HEAD + 1)
  local idem_length = byte(raw, idem_at)
  j.flow, j.type_at = sub(raw, HEAD + 2, idem_at - 1), idem_at + 1 + idem_length
  if idem_length > 0 then
    j.idem = sub(raw, idem_at + 1, idem_at + idem_length)
  end
  return j
end

-- is_dead_letter reports whether a job is dead and can be replayed. One that failed for good has
-- lost its payload.
local function is_dead_letter(j)
  return j.state == 'd' and j.outcome ~= 'f'
end

-- result_of reads the result of a job, or its first bytes if most is given.
local function result_of(key, j, most)
  local from = j.prefix + j.payload
  return j.result > 0 and redis.call('GETRANGE', key, from, from + math.min(j.result, most or j.result) - 1) or ''
end

-- key_bytes is the size of the idempotency key of a job in Redis; its name repeats the flow's.
local function key_bytes(j)
  return j.idem == '' and 0 or KEY_BYTES + #j.flow
end

-- names_job returns the constant part of an idempotency key's value, nil if it is of another job: a
-- dead letter with a late callback outlives its key, which a client may have used again.
local function names_job(value, id)
  return string.match(value, '^' .. id .. ' %S+')
end

-- record_bytes is the size of a record in Redis.
local function record_bytes(prefix, payload, result)
  local text = prefix + payload + result
  local spare = result > 0 and payload >= APPEND_FROM and math.min(text, SPARE_MOST) or 0
  return RECORD_BYTES + text + spare
end

-- job_bytes is the size of a job in Redis while it is waiting, leased or dead.
local function job_bytes(j)
  return record_bytes(j.prefix, j.payload, j.result) + key_bytes(j)
end

-- asks_for_callback reports whether a callback URL follows the first six fields of the prefix. The
-- type is the third of them.
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

-- job_succeeding decodes what succeed needs of a job without idempotency key and callback; nil for
-- any other.
local function job_succeeding(raw)
  if #raw <= HEAD then
    return nil
  end
  local idem_at = HEAD + 2 + byte(raw, HEAD + 1)
  if byte(raw, idem_at) ~= 0 then
    return nil
  end
  local j = succeeding_read(raw)
  j.flow, j.type_at = sub(raw, HEAD + 2, idem_at - 1), idem_at + 1
  return not asks_for_callback(j) and j or nil
end

-- job_new is the record of a new job: its head up to the cost, and the rest. Jobs that are queued
-- at the same instant differ only in their sequence, while that has at most three bytes: to encode
-- each anew takes 4 % more of Redis's instructions for a job.
local queued_at, before_seq, after_seq = -1, '', ''
local function job_new(state, at, deadline, seq, created, wait, rest)
  if state == 'q' and at == created and deadline == 0 and wait == 0 and seq < 16777216 then
    if queued_at ~= at then
      local instant = u56(at)
      queued_at = at
      before_seq = '1q' .. ZERO7 .. '-' .. ZERO4 .. ZERO7 .. instant .. ZERO7 .. ZERO3
      after_seq = ZERO3 .. instant .. ZERO5
    end
    return before_seq .. u24(seq) .. after_seq .. rest
  end
  return '1' .. state .. ZERO7 .. '-' .. ZERO4 .. ZERO7 .. u56(at) .. u56(deadline) .. u48(seq) .. ZERO3
    .. u56(created)
    .. u40(wait) .. rest
end

-- job_head encodes the whole head of a job that was read. Created, max wait and cost never change.
local function job_head(j)
  return '1' .. j.state .. u32(j.epoch) .. u16(j.attempts) .. char(j.free) .. j.outcome .. u32(j.tag)
    .. u56(j.stamp) .. u56(j.at) .. u56(j.deadline) .. u48(j.seq) .. u24(j.result)
    .. sub(j.raw, CREATED_AT, COST_END) .. u16(j.max) .. sub(j.raw, PREFIX_AT, PREFIX_END)
    .. u32(j.payload)
end

-- job_leased encodes the part of the head that the lease of a queued job changes, from the state to
-- the stamp.
local function job_leased(epoch, raw, stamp)
  return 'l' .. u32(epoch) .. sub(raw, ATTEMPTS_AT, TAG_END) .. u56(stamp)
end

-- job_ended writes the record of a job that ends without its payload, to expire after so many
-- seconds, '' for never. It returns the bytes of the record, and what is before the result. j is
-- as of job_read or job_succeeding, ended the encoded instant and no deadline, most the max
-- attempts, 0 for those it has. j.aside is the bytes of a result that is aside, in the key
-- j.aside_key, behind as many others as come before it.
local function job_ended(key, j, ended, result, most, expiry)
  local raw, attempts, bytes = j.raw, j.attempts, j.aside or #result
  local low = attempts % 256
  local front = '1' .. j.state .. sub(raw, EPOCH_AT, EPOCH_END)
    .. char((attempts - low) / 256, low, j.free or byte(raw, FREE_AT)) .. j.outcome
    .. sub(raw, TAG_AT, STAMP_END) .. ended .. (j.seq and u48(j.seq) or sub(raw, SEQ_AT, SEQ_END))
    .. u24(bytes)
    .. (most > 0 and sub(raw, CREATED_AT, COST_END) .. u16(most) .. sub(raw, PREFIX_AT, PREFIX_END)
      or sub(raw, CREATED_AT, PREFIX_END))
    .. ZERO4 .. sub(raw, HEAD + 1, j.prefix)
  if j.aside then
    redis.call('RENAME', j.aside_key, key)
    redis.call('SETRANGE', key, 0, front)
    if expiry ~= '' then
      redis.call('EXPIRE', key, expiry)
    else
      redis.call('PERSIST', key)
    end
  elseif expiry ~= '' then
    redis.call('SET', key, front .. result, 'EX', expiry)
  else
    redis.call('SET', key, front .. result)
  end
  return #front + bytes, front
end
