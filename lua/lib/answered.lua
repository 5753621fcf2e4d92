-- answered: what a pool learns from the answers of its upstream: shaper.Pauses and shaper.Refusals.
--
-- Fields of a pool:
--   asked     of shaper.Pauses: UNTIL PARTY SINCE BEFORE, then each party; / for no party
--   refused   of shaper.Refusals: FIRST SINCE DEPARTED, of the others REFUSED WELL, then of each
--     party its name, REFUSED and WELL
--   watched   since when departures matter if they succeed, 0 for none: shaper.Watched. A success
--     reads the other two fields only then

--! needs clock pools bucket policy flow trial pool
--! pools

local NO_PAUSES, NO_REFUSALS = '0 / 0 0', '0 0 0 0 0'
local PARTIES_MOST = 8 -- shaper.partiesMost

-- party_of is who a job of a flow is for, as far as its pool counts answers: its tenant, or the
-- class, whose tenants may all be one client.
local function party_of(f)
  if not f.party then
    local policy = f.policy or policy_read(redis.call('HGET', f.key, 'policy'))
    f.party = policy and policy.class and '/' .. policy.class or tenant_of(f.name)
  end
  return f.party
end

-- pauses_new are shaper.Pauses.
local function pauses_new(till, party, since, before)
  return { till = till, party = party, since = since, before = before, parties = {} }
end

-- refusals_new are shaper.Refusals.
local function refusals_new(first, since, departed)
  return { first = first, since = since, departed = departed, refused = 0, well = 0, parties = {} }
end

-- answered_load reads the fields of a pool, once.
local function answered_load(p)
  if p.pauses then
    return
  end
  p.answered_was = redis.call('HMGET', p.key, 'asked', 'refused')
  local till, party, since, before, parties
    = string.match(p.answered_was[1] or NO_PAUSES, '^(%d+) (%S+) (%d+) (%d+)(.*)$')
  p.pauses = till and pauses_new(till + 0, party, since + 0, before + 0) or pauses_new(0, '/', 0, 0)
  for name in string.gmatch(parties or '', '%S+') do
    p.pauses.parties[#p.pauses.parties + 1] = name
  end
  local first, begun, departed, refused, well, others
    = string.match(p.answered_was[2] or NO_REFUSALS, '^(%d+) (%d+) (%d+) (%d+) (%d+)(.*)$')
  local r = first and refusals_new(first + 0, begun + 0, departed + 0) or refusals_new(0, 0, 0)
  p.refusals, r.refused, r.well = r, tonumber(refused) or 0, tonumber(well) or 0
  for name, no, yes in string.gmatch(others or '', '(%S+) (%d+) (%d+)') do
    r.parties[#r.parties + 1] = { name = name, refused = no + 0, well = yes + 0 }
  end
end

-- is_watched reports whether a success of a job that departed at the stamp matters to the pool.
local function is_watched(p, stamp)
  return p.pauses ~= nil or p.watched > 0 and stamp >= p.watched
end

-- answered_save writes the fields that have changed, and sets watched, which save writes.
local function answered_save(p)
  local a, r = p.pauses, p.refusals
  local asked = { format('%d %s %d %d', a.till, a.party, a.since, a.before), unpack(a.parties) }
  local refused = { format('%d %d %d %d %d', r.first, r.since, r.departed, r.refused, r.well) }
  for i = 1, #r.parties do
    local one = r.parties[i]
    refused[i + 1] = format('%s %d %d', one.name, one.refused, one.well)
  end
  local was = p.answered_was
  local args, texts = {}, { table.concat(asked, ' '), table.concat(refused, ' ') }
  for i = 1, 2 do
    if texts[i] ~= (was[i] or (i == 1 and NO_PAUSES or NO_REFUSALS)) then
      args[#args + 1], args[#args + 2], was[i] = i == 1 and 'asked' or 'refused', texts[i], texts[i]
    end
  end
  if args[1] then
    redis.call('HSET', p.key, unpack(args))
  end
  p.watched = (a.since == 0 or r.first == 0) and math.max(a.since, r.first) or math.min(a.since, r.first)
end

-- has_party reports whether a list of parties has one.
local function has_party(parties, party)
  for i = 1, #parties do
    if parties[i] == party then
      return true
    end
  end
  return false
end

-- recovered reports whether a pool is neither held nor slower than before its holds.
local function recovered(p)
  return p.held <= now and share(p, now) >= p.pauses.before
end

-- pause_asked is shaper.Pauses.Answer: it returns whether an answer to a party that asks for a
-- pause holds the flow, and until when it holds the pool, 0 for not at all.
local function pause_asked(p, party, delay)
  answered_load(p)
  local most, always = max_pool_hold(p)
  local a, held, till = p.pauses, p.held > now, now + math.min(delay, most)
  local counts = a.till > now
  local grace = counts and a.party == '/'
  if always and grace then
    return true, 0
  elseif always and held then
    return false, math.min(now + delay, math.max(p.held, a.till))
  elseif always then
    p.pauses = pauses_new(now + most, party, 0, 0)
    return false, till
  end
  if a.since == 0 or not counts and recovered(p) then
    a.since, a.before, a.parties = now, 0, {}
  end
  if #a.parties <= PARTIES_MOST and not has_party(a.parties, party) then
    a.parties[#a.parties + 1] = party
  end
  if grace or held or counts and a.party == party then
    return true, 0
  elseif counts then
    a.before = a.before == 0 and share(p, now) or a.before
    a.till, a.party = 0, '/'
    return true, till
  end
  a.till, a.party = till, party
  return true, 0
end

-- begin_grace lets no answer hold a pool for as long as one may.
local function begin_grace(p)
  answered_load(p)
  p.probe, p.pauses = 0, pauses_new(now + max_pool_hold(p), '/', 0, 0)
end

-- contradict is shaper.Pauses.Succeed, for a job that departed at the stamp.
local function contradict(p, party, stamp)
  local a, held = p.pauses, p.held
  if a.since == 0 or stamp < a.since then
    return
  end
  local most, always = max_pool_hold(p)
  if always then
    p.pauses = pauses_new(a.till, a.party, 0, 0)
    return
  end
  if p.probe > 0 and held > now then
    p.held, p.probe = now, 0
  end
  if #a.parties > PARTIES_MOST or has_party(a.parties, party) then
    if a.till <= now and recovered(p) then
      p.pauses = pauses_new(0, '/', 0, 0)
    end
    return
  end
  if a.before > 0 and p.share > 0 and stamp < held then
    p.share, p.spaced = math.max(p.share, a.before), math.min(p.spaced, now)
  end
  local again = a.before > 0 or a.till > now and a.party == '/'
  p.pauses = pauses_new(again and now + most or 0, '/', 0, 0)
end

-- answers_to returns what counts the answers to a party: its own counts, or those of the others.
local function answers_to(r, party)
  for i = 1, #r.parties do
    if r.parties[i].name == party then
      return r.parties[i]
    end
  end
  return r
end

-- answers_all is shaper.Refusals.answers.
local function answers_all(r)
  local n = r.refused + r.well
  for i = 1, #r.parties do
    n = n + r.parties[i].refused + r.parties[i].well
  end
  return n
end

-- least_refused is shaper.Refusals.least.
local function least_refused(r, departures)
  if r.refused == 0 and (r.well > 0 or (departures - answers_all(r)) * TRIAL_TOLERATED > departures) then
    return 0, 1
  end
  local refused, of = 1, 1
  for i = 0, #r.parties do
    local a = r.parties[i] or r
    local no, all = 2 * a.refused + 1, 2 * (a.refused + a.well) + 1
    if no * of < refused * all then
      refused, of = no, all
    end
  end
  return refused, of
end

-- refuse_in counts that the upstream refused a job of a party that departed at the stamp:
-- shaper.Refusals.Refuse.
local function refuse_in(p, party, stamp)
  answered_load(p)
  local r = p.refusals
  local age, departures = now - r.since, p.departed - r.departed
  local over = trial_over(r.since, age, departures)
  if not over and stamp < r.first then
    return
  end
  if over then
    p.refusals = refusals_new(now, now, p.departed)
    p.refusals.parties[1] = { name = party, refused = 0, well = 0 }
    return
  end
  local to = answers_to(r, party)
  if to == r and #r.parties < PARTIES_MOST then
    to = { name = party, refused = 0, well = 0 }
    r.parties[#r.parties + 1] = to
  end
  to.refused = to.refused + 1
  if age < TRIAL_SPAN or departures < TRIAL_LEAST then
    return
  end
  if #r.parties > 1 then
    slow(p, least_refused(r, departures))
  end
  p.refusals = refusals_new(r.first, now, p.departed)
  for i = 1, #r.parties do
    local one = r.parties[i]
    if one.refused > 0 then
      p.refusals.parties[#p.refusals.parties + 1] = { name = one.name, refused = 0, well = 0 }
    end
  end
end

-- held_anew forgets the refusals before a hold of a pool, which reduces its rate by itself.
local function held_anew(p)
  p.refusals = refusals_new(0, 0, 0)
end

-- success_seen takes into account that a job of the flow succeeded that departed at the stamp.
local function success_seen(f, stamp)
  local p = f.pool
  answered_load(p)
  local r, since = p.refusals, p.pauses.since
  local counts = r.first > 0 and stamp >= r.first
  if not counts and (since == 0 or stamp < since) then
    return
  end
  local party = party_of(f)
  if counts then
    if trial_over(r.since, now - r.since, p.departed - r.departed) then
      p.refusals = refusals_new(0, 0, 0)
    else
      local to = answers_to(r, party)
      to.well = to.well + 1
    end
  end
  contradict(p, party, stamp)
end

-- all_answered_save does so for the pools of the call.
local function all_answered_save()
  for i = 1, #pool_list do
    if pool_list[i].pauses then
      answered_save(pool_list[i])
    end
  end
end
