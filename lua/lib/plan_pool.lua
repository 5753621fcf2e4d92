-- plan_pool: which jobs of a pool's flows leave now. A block, because a script
-- may have 200 local names.

--! needs record clock bucket turn pool flow filing finish poll plan
--! pools

local plan_pool

do
  -- A poll reads so many of the flows that wait: each takes Redis 40 µs.
  local OLDEST_MOST, NEWEST_MOST, TRIES_MORE = 80, 20, 50
  local SPARE_STEP = 100000 -- µs; shaper.spareStep
  local COMING_MOST = 16 -- flows that a costly job looks at before it leaves

  -- queue_head returns the id and the sequence of the first queued job that no earlier slot took.
  local function queue_head(f)
    if f.at > #f.window then
      local last = f.fetched + (f.fetched == 0 and 1 or 16) - 1
      local queue = PREFIX .. 'queue:' .. f.name
      f.at = 1
      if f.parts == 2 then
        f.window = redis.call('ZRANGE', queue, format('%d', f.fetched), format('%d', last), 'WITHSCORES')
      else
        f.window = redis.call('ZRANGE', queue, format('%d', f.fetched), format('%d', last))
      end
      f.fetched = f.fetched + #f.window / f.parts
      if not f.window[1] and f.queued > #f.waiting then
        exists(queue)
        error('DAMAGED flow ' .. f.name)
      end
    end
    return f.window[f.at], f.parts == 2 and tonumber(f.window[f.at + 1])
  end

  -- Lists of entries in ascending order from head on, each with a score and the name of a flow. An
  -- entry counts only while it is the one that current holds for the name.

  local function entries_of(list)
    local entries = { head = 1 }
    for i = 1, #list, 2 do
      entries[#entries + 1] = { name = list[i], score = list[i + 1] + 0 } -- tonumber of gopher-lua fails at 1e+9
    end
    return entries
  end

  local function current_of(entries)
    local current = {}
    for i = 1, #entries do
      current[entries[i].name] = entries[i]
    end
    return current
  end

  local function insert(entries, current, score, name)
    local low, high = entries.head, #entries + 1
    while low < high do
      local middle = math.floor((low + high) / 2)
      local e = entries[middle]
      if e.score < score or e.score == score and e.name < name then
        low = middle + 1
      else
        high = middle
      end
    end
    local entry = { name = name, score = score }
    if low == entries.head and low > 1 then
      entries.head, entries[low - 1] = low - 1, entry
    else
      table.insert(entries, low, entry)
    end
    current[name] = entry
  end

  local function first_of(entries, current)
    local head = entries.head
    local entry = entries[head]
    while entry and current[entry.name] ~= entry do
      head = head + 1
      entry = entries[head]
    end
    entries.head = head
    return entry
  end

  -- without_lined returns a list of an index without flows of full routes. All but LOOKS_MOST
  -- of a poll wait in the lines of their routes, without being loaded.
  local function without_lined(w, list, wait, unready)
    if not bounds then
      return list
    end
    local rest = {}
    for i = 1, #list, 2 do
      local name = list[i]
      local no_slot = not flows[name] and line.no_slot(name)
      w.looks = w.looks + (no_slot and 1 or 0)
      if no_slot and w.looks > LOOKS_MOST then
        wait[#wait + 1], wait[#wait + 2] = format('%d', line.join(route_of(name), now + horizon)), name
        unready[#unready + 1], w.lined[name] = name, true
      else
        rest[#rest + 1], rest[#rest + 2] = name, list[i + 1]
      end
    end
    reply[PUT_OFF] = reply[PUT_OFF] + (#list - #rest) / 2
    return rest
  end

  -- waiting reads which flows wait for an instant up to the horizon: those that have waited the
  -- longest, and those that came last. Where thousands come at one instant, flows from which jobs
  -- leave all the time are among the last. It returns whether there are others in between, which
  -- later polls read.
  local function waiting(p)
    local list = redis.call('ZRANGEBYSCORE', p.wait_index, '-inf', now + horizon,
      'WITHSCORES', 'LIMIT', 0, OLDEST_MOST)
    if #list < 2 * OLDEST_MOST then
      return list, false
    end
    local newest = redis.call('ZREVRANGEBYSCORE', p.wait_index, now + horizon, '-inf',
      'WITHSCORES', 'LIMIT', 0, NEWEST_MOST)
    local read, more = current_of(entries_of(list)), true
    for i = #newest - 1, 1, -2 do
      if read[newest[i]] then
        more = false
      else
        list[#list + 1], list[#list + 2] = newest[i], newest[i + 1]
      end
    end
    return list, more
  end

  -- pool_window reads the indexes of a pool as far as the plan can need them.
  local function pool_window(p, most)
    local last = format('%d', most)
    local wait, more = waiting(p)
    local ready = redis.call('ZRANGE', p.ready_index, '0', last, 'WITHSCORES')
    local reserve = p.reserved and redis.call('ZRANGE', p.reserve_index, '0', last, 'WITHSCORES') or {}
    local w = { turns = {}, awaited = {}, moved = {}, stale = 0, far_ahead = 0, looks = 0, lined = {},
      lines = {}, class_picks = 0, more = more }
    w.wait = entries_of(without_lined(w, wait, p.wait, {}))
    w.ready = entries_of(without_lined(w, ready, p.wait, p.unready))
    w.reserve = entries_of(reserve)
    for i = 1, #p.class_list do
      local c = p.class_list[i]
      local own = c.members > 0 and redis.call('ZRANGEBYSCORE', c.index, '-inf', now + horizon,
        'WITHSCORES', 'LIMIT', 0, most + 1) or {}
      local entries = entries_of(without_lined(w, own, c.wait, {}))
      w.lines[i] = { class = c, entries = entries, current = current_of(entries) }
    end
    w.wait_now, w.ready_now, w.reserve_now = current_of(w.wait), current_of(w.ready), current_of(w.reserve)
    for name in pairs(w.lined) do
      w.reserve_now[name] = nil
    end
    return w
  end

  -- turn_of is the turn of a flow, which need not have been loaded, with the stamp given last.
  local function turn_of(p, w, name)
    local t = w.turns[name]
    if not t then
      local v = redis.call('HMGET', PREFIX .. 'flow:' .. name, 'turn', 'last')
      t = turn_read(v[1], p)
      t.last, t.missing = tonumber(v[2]) or 0, not v[1]
      w.turns[name] = t
    end
    return t
  end

  -- drop removes the stale entries of a flow, which is in no index, from those of the pool, or the
  -- one of a flow that is not filed in a class.
  local function drop(p, w, name, line)
    w.stale = w.stale + 1
    if line then
      line.class.unwait[#line.class.unwait + 1] = name
      return
    end
    w.ready_now[name], w.reserve_now[name], w.moved[name] = nil, nil, nil
    p.unready[#p.unready + 1], p.unwait[#p.unwait + 1] = name, name
  end

  -- forgotten reports whether a flow is missing and has no jobs. One with jobs is to be repaired.
  local function forgotten(p, w, name)
    return turn_of(p, w, name).missing
      and redis.call('EXISTS', PREFIX .. 'flow:' .. name, PREFIX .. 'queue:' .. name, PREFIX .. 'later:' .. name) == 0
  end

  -- reserve_head returns the entry of the reserve that is due first. It drops stale ones, and those
  -- of flows without a reserve.
  local function reserve_head(p, w)
    local head = first_of(w.reserve, w.reserve_now)
    while head do
      local t = turn_of(p, w, head.name)
      if t.filed and t.limit > 0 then
        return head, t
      elseif t.filed then
        w.reserve_now[head.name], w.stale = nil, w.stale + 1
        p.unreserve[#p.unreserve + 1] = head.name
      else
        drop(p, w, head.name)
      end
      head = first_of(w.reserve, w.reserve_now)
    end
  end

  local function become_candidate(w, name, t)
    insert(w.ready, w.ready_now, t.start, name)
    if t.limit > 0 then
      insert(w.reserve, w.reserve_now, t.tat, name)
    end
    w.wait_now[name], w.moved[name] = nil, true
  end

  -- move_candidates makes the flows candidates for a slot that wait for an instant up to limit. One
  -- that left at the slot before was a candidate then.
  local function move_candidates(p, w, limit, slot)
    local entering = {}
    local head = first_of(w.wait, w.wait_now)
    while head and head.score <= limit do
      local t = turn_of(p, w, head.name)
      local damaged_turn = t.limit > 0 and reserve_far_ahead(p, t, slot)
      if t.last == p.last and p.last > 0 and not damaged_turn and not turn_ahead(p, t) then
        become_candidate(w, head.name, t)
      else
        entering[#entering + 1] = head.name
      end
      w.far_ahead = w.far_ahead + (damaged_turn and 1 or 0)
      w.wait_now[head.name] = nil
      head = first_of(w.wait, w.wait_now)
    end
    local reserved, t
    if w.reserve[w.reserve.head] then
      reserved, t = reserve_head(p, w)
    end
    if reserved then
      t.tat, t.tat_rem = reserved.score, t.tat == reserved.score and t.tat_rem or 0
      reserves_advance(p, t, slot)
    end
    for i = 1, #entering do
      local t = turn_of(p, w, entering[i])
      turn_enter(p, t, slot)
      become_candidate(w, entering[i], t)
    end
  end

  -- class_due is when the class of a line may leave: with its first flow, and not while it lets the
  -- pool idle for another. nil if no flow of it waits.
  local function class_due(l)
    return l.head and math.max(l.head.score, l.class.last)
  end

  -- first_line finds the first flow of each class. It returns when one of them may leave, 0 if a
  -- class owes, nil if none waits.
  local function first_line(w)
    local first
    for i = 1, #w.lines do
      local l = w.lines[i]
      l.head = first_of(l.entries, l.current)
      local at = l.class.owed > 0 and 0 or class_due(l)
      first = at and math.min(at, first or FARTHEST) or first
    end
    return first
  end

  -- enter_classes makes the classes candidates for a slot whose first flow may leave, or that owe.
  local function enter_classes(p, w, slot)
    w.class_picks = 0
    for i = 1, #w.lines do
      local l, c = w.lines[i], w.lines[i].class
      l.picks = c.owed > 0 or l.head and class_due(l) <= slot
      w.class_picks = w.class_picks + (l.picks and 1 or 0)
      if l.picks and (c.last ~= p.last or turn_ahead(p, c)) then
        turn_enter_start(p, c)
      end
    end
  end

  -- pick is shaper.Pool.Pick: the entry of the flow that departs at the slot, whether its reserve
  -- says so, and its line if it is of a class. Of equal candidates, a class comes last.
  local function pick(p, w, slot)
    local reserved = w.reserve[w.reserve.head] and first_of(w.reserve, w.reserve_now)
    if reserved and reserved.score <= slot - p.behind then
      return reserved, true
    end
    local entry, line, start = first_of(w.ready, w.ready_now), nil, FARTHEST
    if entry then
      start = entry.score
    end
    for i = 1, #w.lines do
      local l = w.lines[i]
      if l.picks and l.class.start < start then
        entry, line, start = l.head, l, l.class.start
      end
    end
    return entry, false, line
  end

  -- start_of_only is the virtual start of the flow or the class that was picked, if it is the only
  -- candidate and its reserve did not say so; else nil. Its entry is in ready no more.
  local function start_of_only(w, entry, reserved, line)
    if reserved or w.more or w.class_picks > (line and 1 or 0) or first_of(w.ready, w.ready_now) then
      return nil
    end
    return line and line.class.start or entry.score
  end

  -- next_before is shaper.Pool.Next: when the first flow or class comes whose turn is before that
  -- of the only candidate at a slot, which begins at start; and the name of the flow, or the class.
  -- It comes after the slot and before the end, and counts, if that is not nil; nil if none does.
  local function next_before(p, w, start, slot, finish, counts)
    local last, entry, who = finish, nil, nil
    local function begins(t)
      return (t.start < p.virtual or turn_ahead(p, t)) and p.virtual or t.start
    end
    local function is_before(name, due)
      local t = turn_of(p, w, name)
      return t.filed and not line.no_slot(name) and (begins(t) < start or t.limit > 0 and t.tat <= due - p.behind)
        and (not counts or counts(name, due))
    end
    local looks, head = COMING_MOST, w.wait.head
    while w.wait[head] and w.wait[head].score < finish and looks > 0 do
      entry, head = w.wait[head], head + 1
      if w.wait_now[entry.name] == entry and entry.score > slot then
        looks = looks - 1
        if is_before(entry.name, entry.score) then
          finish, who = entry.score, entry.name
        end
      end
    end
    local function later(index, after, most) -- flows that are not in the window
      return redis.call('ZRANGEBYSCORE', index, '(' .. format('%d', after), '(' .. format('%d', finish),
        'WITHSCORES', 'LIMIT', 0, most)
    end
    if now + horizon < finish then
      local list = later(p.wait_index, now + horizon, COMING_MOST)
      for i = 1, #list, 2 do
        local due = list[i + 1] + 0
        if due < finish and is_before(list[i], due) then
          finish, who = due, list[i]
        end
      end
    end
    for i = 1, #w.lines do
      local l, c = w.lines[i], w.lines[i].class
      if not l.picks and begins(c) < start then
        local e = first_of(l.entries, l.current)
        local first = e and { e.name, e.score } or now + horizon < finish and later(c.index, now + horizon, 1) or {}
        local due = first[1] and math.max(first[2] + 0, c.last)
        if due and due > slot and due < finish and not line.no_slot(first[1]) and (not counts or counts(c, due)) then
          finish, who = due, c
        end
      end
    end
    return finish < last and finish or nil, who
  end

  -- awaited_of is shaper.Awaited of a flow or a class, and how many jobs of the flow have left, or
  -- the virtual start of the class.
  local function awaited_of(p, w, who)
    local a, class = w.awaited[who], type(who) == 'table' and who or nil
    if not a then
      a = class and { key = p.key, field = 'awaited:' .. class.name }
        or { key = PREFIX .. 'flow:' .. who, field = 'awaited' }
      local v = redis.call('HMGET', a.key, a.field, 'departed')
      local due, before = string.match(v[1] or '', '^(%d+) (%d+)$')
      a.due, a.before, a.departed = tonumber(due) or 0, tonumber(before) or 0, tonumber(v[2]) or 0
      w.awaited[who] = a
    end
    local f = flows[who]
    a.departed = class and class.start or f and f.departed or a.departed
    return a
  end

  -- spare is shaper.Pool.Spare: whether a job of the cost leaves the slot idle for a flow or class
  -- before it in turn. If so, its flow or class is not ready until then, or until the pool looks
  -- again. start is as start_of_only returns it.
  local function spare(p, w, f, start, cost, slot, line)
    local span = start and pool_beyond_one(p, cost) or 0
    local most = math.min(span - p.spared, math.max(math.floor(span / 2), SPARE_STEP))
    if most <= 0 then
      return false
    end
    local due, who = next_before(p, w, start, slot, slot + most, function(who, due)
      local a = awaited_of(p, w, who)
      return a.due == 0 or a.before ~= a.departed or slot < a.due and due <= a.due -- not missed
    end)
    if not due then
      return false
    end
    local a = w.awaited[who]
    a.due, a.before = due, a.departed
    p.awaited[#p.awaited + 1] = { a.key, a.field, format('%d %d', due, a.departed) }
    due = math.min(due, slot + SPARE_STEP)
    p.spared = p.spared + due - slot
    if line then
      line.class.last = due
    else
      f.ready = math.max(f.ready, due)
    end
    return true
  end

  -- take_next takes the next job of a flow for a slot of its pool; nil if none is eligible by then,
  -- or the slot stays idle.
  local function take_next(f, slot, p, w, start, line)
    while true do
      while f.later_before and f.later_before <= slot and promotable(f) > 0 do
        f.promoted_from = promote(f, f.waiting, slot, f.promoted_from)
      end
      local id, seq = queue_head(f)
      local j = f.waiting[1]
      local from_queue = id and not (j and j.seq < seq)
      if from_queue then
        local raw = record_for(f, id)
        j = job_waiting(raw, id) or job_of_raw(raw, id, f)
      end
      if not j then
        f.barred = f.later_before and f.later_before <= slot
        return nil
      end
      if j.at > slot then
        f.ready = math.max(f.ready, j.at)
        return nil
      end
      local late = overdue(j, slot)
      if not late and spare(p, w, f, start, j.cost, slot, line) then
        return nil
      end
      if (late or #j.record == HEAD_READ) and stays(f, j, late) then
        f.barred = true
        return nil
      end
      if from_queue then
        f.at = f.at + f.parts
      else
        table.remove(f.waiting, 1)
        j.taken = true
      end
      if take(f, j, late) then
        j.stamp = slot
        return j
      end
    end
  end

  -- pooled returns a flow of the pool for a plan, with its turn as in the window.
  local function pooled(p, w, name)
    local f = flow(name)
    plan_begin(f)
    if f.pool == p and not f.waiting then
      f.waiting, f.window, f.at, f.fetched, f.promoted_from = {}, {}, 1, 0, 0
      f.parts = f.later_before and 2 or 1 -- sequences are needed only beside promoted jobs
      f.turn = w.turns[name] or f.turn
      f.due_before, w.turns[name], f.turn.last = nil, f.turn, f.last
    end
    return f
  end

  -- bounded puts a flow off that may take no slot of the worker, or has its part of the pool's
  -- concurrency: at most three times what it leaves to the others, and one more.
  local function bounded(p, f)
    local most = p.policy.concurrency
    if most > 0 and f.running >= 3 * (most - p.running) then
      put_off(f, horizon)
      f.put_off = 'pool'
      return true
    end
    local route = bounds and route_of(f.name)
    if not route or not bounds[route] then
      return false
    end
    f.share_left = f.share_left or share_of(f)
    if f.share_left > 0 and bounds[route] > 0 then
      return false
    end
    line_up(f)
    f.put_off, reply[PUT_OFF] = 'upstream', reply[PUT_OFF] + 1
    return true
  end

  -- turn_at gives the turn of a flow the place at which it was picked.
  local function turn_at(t, entry, reserved, line)
    if reserved and t.tat ~= entry.score then
      t.tat, t.tat_rem = entry.score, 0
    elseif not reserved and not line and t.start ~= entry.score then
      t.start, t.rem = entry.score, 0
    end
  end

  -- unspare is shaper.Pool.unspare: a job of the cost leaves, for which the pool may have idled.
  local function unspare(p, reserved, cost)
    if not reserved then
      p.spared = math.max(0, p.spared - pool_beyond_one(p, cost))
    end
  end

  -- repay lets a flow or a class repay a part of what it owes, at its turn or that of its class, as
  -- much as the pool has time for until another is due, if that is not nil.
  local function repay(p, party, turn, reserved, slot, due)
    local cost, unused = pool_repays(p, party.owed, slot, due)
    depart(p, slot, 0, cost - unused) -- shaper.Pool.Repay
    turn_serve(p, turn, reserved, slot, cost)
    pool_owe(p, party, -cost)
  end

  -- serve_flow lets the next job of a flow leave at the slot, or a flow that owes repay a part of
  -- that. It returns whether a job left, nil if the entry of the flow is stale.
  local function serve_flow(p, w, entry, reserved, slot, line)
    local f = pooled(p, w, entry.name)
    if f.pool == p and (not f.turn.filed or f.line ~= (line and line.class.name)) then
      return nil
    end
    local start = start_of_only(w, entry, reserved, line)
    if f.pool == p and f.owed > 0 then
      local due = start and next_before(p, w, start, slot, slot + REPAY_SPAN)
      turn_at(f.turn, entry, reserved, line)
      repay(p, f, line and line.class or f.turn, reserved, slot, due)
      return false
    end
    local due = f.pool == p and flow_due(f, f.later_before)
    if not due or due > slot or bounded(p, f) then
      return false
    end
    local j = take_next(f, slot, p, w, start, line)
    if f.drop[1] and not f.reached then
      f.reached = true
      flow_reach(f)
      flow_tallied(f)
    end
    if not j then
      return false
    end
    local t = f.turn
    turn_at(t, entry, reserved, line)
    depart(f, slot, 1, j.cost)
    local cost = pool_charge(p, j.cost)
    depart(p, slot, 1, cost)
    turn_serve(p, line and line.class or t, reserved, slot, cost)
    unspare(p, reserved, cost)
    t.last = slot
    f.leaving[#f.leaving + 1] = j
    run(f, 1)
    count_departed(f, 1)
    count_cost(f, cost - 1)
    if f.share_left then
      f.share_left, bounds[route_of(f.name)] = f.share_left - 1, bounds[route_of(f.name)] - 1
    end
    return true
  end

  -- pool_aside takes a damaged flow out of the pool for a while.
  local function pool_aside(p, w, name, line)
    local wait = line and line.class.wait or p.wait
    wait[#wait + 1], wait[#wait + 2] = format('%d', now + ASIDE), name
    if not line then
      p.unready[#p.unready + 1] = name
      w.moved[name] = nil
    end
    local f = flows[name]
    if f and f.waiting and not f.leaving[1] then
      flows[name] = nil
      for i = #touched, 1, -1 do
        if touched[i] == f then
          table.remove(touched, i)
        end
      end
    end
  end

  -- healed reports what was wrong with a pool. It is repaired when the pool is saved.
  local function healed(p, w)
    local found = p.healed
    if w.stale > 0 then
      found[#found + 1] = format('%d stale entries in its indexes', w.stale)
    end
    if w.far_ahead > 0 then
      found[#found + 1] = format('%d reserves too far ahead', w.far_ahead)
    end
    if found[1] then
      damaged[#damaged + 1] = 'pool ' .. p.short .. ': ' .. table.concat(found, ', ')
      p.healed = {}
    end
  end

  -- use_slot gives a slot to the flow that was picked for it. It returns how many jobs left,
  -- whether the flow must wait for a later poll, and how many entries were stale.
  local function use_slot(p, w, entry, reserved, slot, line)
    local name = entry.name
    if line then
      line.current[name] = nil
    else
      w.ready_now[name], w.reserve_now[name], w.moved[name] = nil, nil, nil
    end
    local ok, served = attempt('flow ' .. name, serve_flow, p, w, entry, reserved, slot, line)
    if not ok and forgotten(p, w, name) then
      damaged[#damaged], ok, served = nil, true, nil
    end
    if not ok then
      pool_aside(p, w, name, line)
      return 0, false, 0
    elseif served == nil then
      drop(p, w, name, line)
      return 0, false, 1
    end
    local f = flows[name]
    local due = f.pool == p and flow_due(f, f.later_before) -- else its route has left the pool
    if f.pool == p and f.owed > 0 then
      due = math.max(slot, f.ready)
    end
    if due and not f.barred and not f.put_off then -- one that was put off waits for another poll
      if line then
        insert(line.entries, line.current, due, name)
      else
        insert(w.wait, w.wait_now, due, name)
      end
    end
    return served and 1 or 0, due and f.barred or false, 0
  end

  -- plan_pool decides, without writing, which jobs of a pool's flows leave now, once in a poll. It
  -- returns whether more may be ready to leave, and how many leave.
  plan_pool = function(name, budget)
    local p = pool_of(sub(name, 1, -2), unseen)
    local most, left, barred = math.min(budget, FLOW_JOBS_MOST), 0, false
    if p.policy.concurrency > 0 then
      most = math.min(most, p.policy.concurrency - p.running)
    end
    if p.planned or p.policy.paused or most <= 0 then
      return false, 0
    end
    p.planned = true
    local tries = math.min(most, slots(p)) + TRIES_MORE
    local w = pool_window(p, tries)
    while left < most and tries > 0 do
      local ready, wait = first_of(w.ready, w.ready_now), first_of(w.wait, w.wait_now)
      local classes = w.lines[1] ~= nil -- most pools have none
      local first = classes and first_line(w) or nil
      first = wait and math.min(wait.score, first or FARTHEST) or first
      if not ready and not first then
        break
      end
      local slot = stamp_of(p, ready and 0 or first, from)
      if slot > now + horizon then
        break
      end
      move_candidates(p, w, slot, slot)
      if classes then
        enter_classes(p, w, slot)
      end
      local entry, reserved, line = pick(p, w, slot)
      if not entry and not line then
        tries = 0 -- all that the poll has read were stale
        break
      end
      tries = tries - 1
      if line and line.class.owed > 0 then
        local start = start_of_only(w, entry, reserved, line)
        local due = start and next_before(p, w, start, slot, slot + REPAY_SPAN)
        repay(p, line.class, line.class, false, slot, due)
      else
        local served, more, stale = use_slot(p, w, entry, reserved, slot, line)
        left, tries, barred = left + served, tries + stale, barred or more
      end
      for i = 1, #w.lines do
        local l = w.lines[i]
        if l.picks then
          l.class.last = math.max(l.class.last, p.last)
        end
      end
    end
    if w.more then -- also before the next slot, so that all soon have their turn
      local slot = math.min(stamp_of(p, 0, from), now + horizon)
      move_candidates(p, w, slot, slot)
      p.crowded = true
    end
    for name in pairs(w.moved) do
      local t = w.turns[name]
      p.unwait[#p.unwait + 1] = name
      p.ready_add[name], p.reserve_add[name] = t.start, t.limit > 0 and t.tat or nil
    end
    healed(p, w)
    return left == most or tries <= 0 or barred or w.more, left
  end
end
