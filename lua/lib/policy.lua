-- policy: the settings that a flow obeys.
--
-- The line of a pool has no max wait. In its place is twice the longest hold in ms, and one more if
-- every answer with Retry-After holds the pool; 0 for 60 s and flows alone.
--
-- A policy is a line, resolved in Go by shaper.Baseline.Policies: the paces as
-- limit:period_us:burst joined by commas, each with a j behind it if it counts jobs, and then the
-- weight of the flow's class in pools, if it is in one: a semicolon and its digits as letters from
-- A to J; the types of jobs that are admitted, unless all are: a semicolon, and for each a point
-- and the letters of scripts.HashType; and the max cost of a job, if there is one: a semicolon and
-- its digits as letters from a to j, because a process of before takes any number there for a pace;
-- capacity, capacity in bytes, concurrency, max wait in ms, paused, draining or 2 if denied; then,
-- of a flow in a pool, its weight, its reserve as limit:period_us, 0 for none, and the pool as
-- +NAME; or the word elsewhere where that pool is in another shard. A burst of 1 is left out, and
-- so is a period of a second where no burst follows. Redis stores a hash with a value of over 64
-- bytes as a table: a job in a pool then takes 10 to 20 % more time, and its flow three times the
-- memory. A hash holds a line for each class of flows, TIER/ROUTE: lines for the tenants without
-- settings of their own, lines:TENANT for any other. The line of a pool is +NAME/ in lines, or / in
-- lines:+NAME. The field revision of both names the shard's policies that they were resolved with.
-- A flow keeps its line behind that revision and the tier that the credential of its tenant claims,
-- which names its class.

--! needs record clock

local PACE = '(%d+):?(%d*):?(%d*)(j?)'
local POLICY = '^(%d*) =(%S*) (%S+) (%d+) (%d+) (%d+) (%d+) (%d) (%d) ?(.*)$'

local policies = {} -- by their text; flows share them

-- policy_read decodes the policy that a flow keeps, nil if there is none.
local function policy_read(text)
  local p = policies[text]
  if p or not text then
    return p
  end
  local revision, tier, paces, capacity, bytes, concurrency, wait, paused, draining, pooled = string.match(text, POLICY)
  if not revision then
    return nil
  end
  p = {
    text = text, revision = revision, tier = tier, paces = {}, capacity = capacity + 0,
    capacity_bytes = bytes + 0,
    concurrency = concurrency + 0, wait = wait + 0, paused = paused == '1',
    draining = draining == '1', denied = draining == '2',
  }
  local letters = string.match(paces, ';(%l+)$')
  if letters then
    p.max_cost = string.gsub(letters, '%l', function(c) return char(byte(c) - 49) end) + 0
  end
  for hash in string.gmatch(paces, '%.(%l+)') do
    p.types = p.types or {}
    p.types[hash] = true
  end
  local of_class = string.match(paces, ';(%u+)')
  for limit, period, burst, by in string.gmatch(paces, PACE) do
    p.paces[#p.paces + 1] = {
      limit = limit + 0, period = period == '' and 1000000 or period + 0, burst = burst == '' and 1 or burst + 0,
      by_jobs = by == 'j',
    }
    local pace, drain = p.paces[#p.paces], p.drain
    if not drain or pace.limit / pace.period < drain.limit / drain.period then
      p.drain = pace -- the strictest
    end
  end
  if pooled == 'elsewhere' then
    p.elsewhere = true
  elseif pooled ~= '' then
    local weight, limit, period, pool = string.match(pooled, '^(%d+) (%d+):?(%d*) (%+%S+)$')
    if not pool then
      return nil
    end
    period = limit == '0' and 0 or period == '' and 1000000 or period + 0
    p.weight, p.reserve_limit, p.reserve_period, p.pool = weight + 0, limit + 0, period, pool
    if of_class and tier ~= '' then
      p.class, p.weight, p.reserve_limit, p.reserve_period = tier, 0, 0, 0
      p.class_weight = string.gsub(of_class, '%u', function(c) return char(byte(c) - 17) end) + 0
    end
  end
  policies[text] = p
  return p
end

-- line_in returns the line of a class of flows, false if the hash has none, and the revision that
-- the lines were resolved with. A tier without lines counts as none.
local function line_in(lines, tier, route)
  local found = redis.call('HMGET', lines, tier .. '/' .. route, tier .. '/', '/' .. route, '/', 'revision')
  return found[1] or found[2] or found[3] or found[4], found[5]
end

-- policy_of returns the policy of a tenant's flow under the policies in force, nil if the shard has
-- lost them. The file in force alone decides which pool a flow is in: the tenant's own lines may be
-- those of an older file, whose pools are gone.
local function policy_of(tenant, tier, route, unseen)
  local own = PREFIX .. 'lines:' .. tenant
  if byte(tenant) == 43 then -- +, a pool
    local line = redis.call('HGET', own, '/') or redis.call('HGET', PREFIX .. 'lines', tenant .. '/')
    return line and policy_read(clock.revision .. ' = ' .. line) or nil
  end
  local line, resolved = line_in(own, tier, route)
  if not line then
    missed(own, unseen)
    line = line_in(PREFIX .. 'lines', tier, route)
  elseif resolved ~= clock.revision then
    local parts, weighted = '^(%S+ %d+ %d+ %d+ %d+ %d %d) ?(.*)$', '^%d+ %d+:?%d*' -- weight and reserve
    local settings, pooled = string.match(line, parts)
    local _, placed = string.match(line_in(PREFIX .. 'lines', tier, route) or '', parts)
    if not settings or not placed then
      return nil
    end
    local weight = string.match(pooled, weighted)
    if weight then
      placed = string.gsub(placed, weighted, weight)
    end
    line = placed == '' and settings or settings .. ' ' .. placed
  end
  return line and policy_read(clock.revision .. ' =' .. tier .. ' ' .. line) or nil
end

-- write_lines stores the classes and lines in ARGV from first on, and the revision that they were
-- resolved with.
local function write_lines(key, revision, first)
  redis.call('HSET', key, 'revision', revision)
  in_parts('HSET', key, ARGV, first)
end
