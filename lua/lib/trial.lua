-- trial: what a flow learns from refusals of its upstream: shaper.Trial.

--! needs clock bucket

local TRIAL_SPAN, TRIAL_LEAST, TRIAL_TOLERATED = 1000000, 10, 20 -- of shaper.Trial

-- trial_over reports whether a trial begins anew: shaper.overdue.
local function trial_over(since, age, departures)
  return since == 0 or departures < 0 or (age > 3 * TRIAL_SPAN and departures > 3 * TRIAL_LEAST)
end

-- slow reduces the share of the rate by the part that the upstream refuses: shaper.Bucket.slow.
local function slow(f, refused, of)
  if refused * TRIAL_TOLERATED > of and f.held <= now then
    local before = share(f, now)
    f.share = math.max(SHARE_LEAST, math.floor(before / 2), math.floor(before * (of - refused) / of))
    f.held = now
  end
end

-- refuse counts that the upstream refused a job as too much, and slows the flow once a trial has
-- seen enough: shaper.Bucket.Refuse. The trial is kept apart from the flow's other numbers, which
-- every call reads.
local function refuse(f)
  local since, departed, refused = string.match(redis.call('HGET', f.key, 'trial') or '0 0 0',
    '^(%d+) (%d+) (%d+)')
  local age, departures = now - since, f.departed - departed
  refused = refused + 1
  if trial_over(since + 0, age, departures) then
    since, departed, refused = now, f.departed, 0
  elseif age >= TRIAL_SPAN and departures >= TRIAL_LEAST then
    slow(f, math.min(refused, departures), departures)
    since, departed, refused = now, f.departed, 0
  end
  redis.call('HSET', f.key, 'trial', format('%d %d %d', since, departed, refused))
end
