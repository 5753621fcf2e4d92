-- policy: the settings that hold for a flow, out of the texts in which they are kept.

-- A text of settings is a line of the general ones, like 'l10:1000000 b1 r c1000 k64 w0 p0', and further lines that begin with a heading:
-- '/ROUTE ' for those of a route, in the baseline also '@TIER ' and '@TIER/ROUTE ' for those of a tier. l is limit:period_us, b burst,
-- r further rates limit:period_us:burst,…, c capacity, y capacity in bytes, k concurrency, w max wait in ms, p paused, q paused (of a route), d draining,
-- t the tier (of a tenant).

local function general_of(text)
  return string.match(text, '^[^\n]*')
end

-- section_of is the line under a heading, empty when there is none.
local function section_of(text, heading)
  local _, last = string.find(text, '\n' .. heading .. ' ', 1, true)
  return last and string.match(text, '^[^\n]*', last + 1) or ''
end

-- tier_of is the tier said last, or else the claimed one.
local function tier_of(own, claimed)
  return string.match(' ' .. general_of(own), '.* t(%S*)') or claimed
end

local PLAIN = '^l(%d+):(%d+) b(%d+) r c(%d+) y(%d*) k(%d+) w(%d+) p(%d) d(%d)$' -- a text as Go writes the general line of a baseline

local function policy_with(paces, capacity, capacity_bytes, concurrency, wait, paused, draining)
  return {
    paces = paces, capacity = tonumber(capacity), capacity_bytes = tonumber(capacity_bytes) or 0, concurrency = tonumber(concurrency),
    wait = tonumber(wait), paused = paused, draining = draining == '1',
  }
end

local function pace(limit, period, burst)
  return { limit = tonumber(limit), period = tonumber(period), burst = tonumber(burst) }
end

local policies, policies_baseline, sectioned = {}, nil, false

-- policy_said is the policy of a route's flow: the baseline, the claimed tier, and what is said of the tenant itself, in the order of
-- shaper.Baseline.Resolve.
local function policy_said(baseline, own, claimed, route)
  local tier = '@' .. tier_of(own, claimed)
  local t = {}
  local texts = {
    general_of(baseline), section_of(baseline, tier), general_of(own),
    section_of(baseline, '/' .. route), section_of(baseline, tier .. '/' .. route), section_of(own, '/' .. route),
  }
  for name, value in string.gmatch(table.concat(texts, ' '), '(%l)(%S*)') do
    t[name] = value
  end
  local limit, period = string.match(t.l, '^(%d+):(%d+)$')
  local paces = { pace(limit, period, t.b) }
  for l, length, b in string.gmatch(t.r, '(%d+):(%d+):(%d+)') do
    paces[#paces + 1] = pace(l, length, b)
  end
  return policy_with(paces, t.c, t.y, t.k, t.w, t.p == '1' or t.q == '1', t.d)
end

-- policy_of returns policy_said under the baseline that is in force in the shard. The caller's baseline counts
-- only in a shard that has none yet: so processes with different files do not undo each other's settings.
-- Flows may share the answer.
local function policy_of(baseline, own, claimed, route)
  if clock.baseline ~= '' then
    baseline = clock.baseline
  end
  if baseline ~= policies_baseline then
    policies, policies_baseline, sectioned = {}, baseline, string.find(baseline, '\n', 1, true)
  end
  local key = own
  if sectioned or string.find(own, '\n', 1, true) then
    key = route .. ' ' .. claimed .. ' ' .. own
  end
  local p = policies[key]
  if not p then
    if key == '' then
      local l, period, b, c, y, k, w, paused, draining = string.match(baseline, PLAIN)
      p = l and policy_with({ pace(l, period, b) }, c, y, k, w, paused == '1', draining)
    end
    p = p or policy_said(baseline, own, claimed, route)
    policies[key] = p
  end
  return p
end
