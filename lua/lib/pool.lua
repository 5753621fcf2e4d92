-- pool: how flows share the rate of their pool. The arithmetic is that of shaper.Pool, step for
-- step.
--
-- A pool is stored as a flow named +NAME/, whose bucket gives the stamps and whose counts are the
-- sums of its flows. It is filed in due under the next instant at which it may give a stamp. Its
-- flows are not in due. A flow that has a job to give is in one of two indexes:
--   wait:+NAME      by the instant of its next possible stamp
--   ready:+NAME     by its virtual start: the candidates
-- and a candidate with a reserve is in reserve:+NAME, too, by the instant from which it is
-- reserved.
--
-- The field turn of a flow holds its turn in the pool: '+' if it is in an index or '-' if not, the
-- name of the pool, the virtual start and its remainder, the weight, and the reserve as
-- limit:period:instant:remainder:credit:1, 0 at the end if it did not take the last departure,
-- 0:0:0:0:0:0 without one. Fields of the pool:
--   virtual, behind     of shaper.Pool
--   weights, reserves   sums over the flows in the indexes; reserves in millionths of a cost a
--     second

local POOL = 43 -- '+', with which the name of a pool begins

-- names_pool reports whether a flow of this name is a pool.
local function names_pool(name)
  return byte(name) == POOL
end

local pools, pool_list = {}, {} -- by name without the slash, and in the order in which they were read
local pooling -- the functions on pools; nil before one is read

-- pool_functions makes the functions on pools, with those that they use of other parts. Each
-- function of a script costs every call of it, so they are made when the first pool is read: a job
-- outside pools costs 8 % more of Redis's instructions otherwise.
local function pool_functions(earliest, cell_move, charged)
  local VIRTUAL_UNIT, LEAD_MOST, REBASE_AT = 1000, 2000000000, 4503599627370496 -- of shaper.Pool
  local CREDIT_MOST = 630720000000000 -- µs; shaper.chargeSpan
  local TURN = '^([+-])(%S+) (%d+) (%d+) (%d+) (%d+):(%d+):(%-?%d+):(%d+):(%d+):([01])$'
  local TURN_TEXT = '%s%s %d %d %d %d:%d:%d:%d:%d:%d'
  local POOL_FIELDS = { 'virtual', 'behind', 'weights', 'reserves' }

  -- read reads the first fields of a pool or a flow, and behind them those of its own of a pool, or
  -- the turn of a flow.
  local function read(key, is_pool, fields, last)
    local v, own
    if is_pool then
      v = redis.call('HMGET', key, 'virtual', 'behind', 'weights', 'reserves', unpack(fields, 1, last))
    else
      v = redis.call('HMGET', key, 'turn', unpack(fields, 1, last))
    end
    own = #v - last
    for i = 1, own do
      v[last + own] = table.remove(v, 1)
    end
    return v
  end

  -- turn_read decodes a turn in a pool. One that was never written, or is of another pool, starts
  -- anew.
  local function turn_read(text, p)
    local filed, name, start, rem, weight, limit, period, tat, tat_rem, credit, reserved
      = string.match(text or '', TURN)
    if name ~= p.short then
      return turn_read('-' .. p.short .. ' 0 0 1 0:0:0:0:0:0', p)
    end
    return {
      filed = filed == '+', start = start + 0, rem = rem + 0, weight = weight + 0,
      limit = limit + 0, period = period + 0, tat = tat + 0, tat_rem = tat_rem + 0,
      credit = credit + 0, reserved = reserved == '1',
    }
  end

  local function turn_text(t, p)
    local sign = t.filed and '+' or '-'
    return format(TURN_TEXT, sign, p.short, t.start, t.rem, t.weight, t.limit, t.period, t.tat, t.tat_rem,
      t.credit, t.reserved and 1 or 0)
  end

  -- reserve_a_second is a reserve in millionths of a cost a second.
  local function reserve_a_second(limit, period)
    return limit > 0 and math.floor(limit * 1000000000000 / period) or 0
  end

  -- turn_obey lays weight and reserve of the policy over a turn: shaper.Tag.Obey.
  local function turn_obey(t, policy)
    local limit, period = policy.reserve_limit, policy.reserve_period
    t.weight, t.rem = policy.weight, math.min(t.rem, policy.weight - 1)
    if limit ~= t.limit or period ~= t.period then
      t.limit, t.period, t.tat, t.tat_rem, t.credit = limit, period, limit > 0 and t.tat or 0, 0, 0
      t.reserved = t.reserved and limit > 0
    end
  end

  -- interval is T of a reserve in whole µs, rounded up.
  local function interval(t)
    return math.floor((t.period + t.limit - 1) / t.limit)
  end

  -- advance is shaper.Pool.Advance: it sets the clock of the reserves for a stamp. head is the turn
  -- of the candidate whose reserve is due first, of those that were candidates for the stamp
  -- before.
  local function advance(p, head, at)
    p.behind = math.max(p.behind, at - head.tat - interval(head))
  end

  -- enter is shaper.Pool.Enter: the turn of a flow that becomes a candidate for a stamp.
  local function enter(p, t, at)
    if t.start < p.virtual or t.start > p.virtual + LEAD_MOST then
      t.start, t.rem = p.virtual, 0
    end
    if t.limit == 0 then
      return
    end
    local behind = at - p.behind - interval(t)
    if t.tat < behind then
      t.tat, t.tat_rem, t.credit = behind, 0, 0
    end
  end

  -- cost_before is the cost that the pool gives away before a job of a flow that has the given cost
  -- waiting before it there, while the same flows wait: shaper.Shared.Before.
  local function cost_before(p, f, ahead)
    local t, policy, rate = f.turn, f.policy, FARTHEST
    local weights, reserves = p.weights, p.reserves
    local reserve = reserve_a_second(policy.reserve_limit, policy.reserve_period)
    if not t.filed then
      weights, reserves = weights + policy.weight, reserves + reserve
    end
    for i = 1, #p.cells do
      local c = p.cells[i]
      rate = math.min(rate, c.limit * 1000000000000 / c.period * (c.by_jobs and p.cost / math.max(1, p.queued) or 1))
    end
    local part
    if reserves >= rate then
      part = reserve > 0 and reserve / reserves or 0
    else
      part = (reserve + (rate - reserves) * policy.weight / math.max(weights, policy.weight)) / rate
    end
    local half = f.cost / math.max(1, f.queued) / 2
    if part * p.cost <= ahead then
      return p.cost
    end
    return math.max(0, math.min(p.cost, math.floor((ahead + half) / part - half)))
  end

  -- pay moves a reserve by the intervals of one cost less those of another: shaper.Cell.pay.
  local function pay(t, cost, less, due)
    local from, credit = t.tat, t.credit
    local cell = { limit = t.limit, period = t.period, burst = 1, tat = from, rem = t.tat_rem }
    cell_move(cell, charged(cell, 1, cost) - charged(cell, 1, less))
    local least = math.min(due, from)
    if cell.tat < least then
      credit = math.min(credit + least - cell.tat, CREDIT_MOST)
      cell.tat = least
    end
    local used = math.min(credit, math.max(0, cell.tat - math.max(from, due)))
    t.tat, t.tat_rem = math.min(cell.tat - used, math.max(from, due + CREDIT_MOST)), cell.rem
    t.credit = credit - used
  end

  -- serve is the part of shaper.Pool.Serve after the bucket's: the next turn of the flow whose job
  -- departs at the slot.
  local function serve(p, t, reserved, slot, cost)
    t.reserved = reserved
    if reserved then
      return pay(t, cost, 0, slot - p.behind)
    end
    p.virtual = math.max(p.virtual, t.start)
    local sum = t.rem + cost * VIRTUAL_UNIT
    t.start, t.rem = t.start + math.floor(sum / t.weight), sum % t.weight
  end

  -- correct_turn is shaper.Pool.CorrectTag. The indexes may be newer than a candidate's turn.
  local function correct_turn(f, cost, actual, idle)
    local p, t = f.pool, f.turn
    if t.filed and f.candidate == nil then
      local start = redis.call('ZSCORE', p.ready_index, f.name)
      local tat = redis.call('ZSCORE', p.reserve_index, f.name)
      f.candidate = start and true or false
      if start and start + 0 ~= t.start then
        t.start, t.rem = start + 0, 0
      end
      if tat and tat + 0 ~= t.tat then
        t.tat, t.tat_rem = tat + 0, 0
      end
    end
    if t.reserved then
      local credit = t.credit
      pay(t, actual, cost, now - p.behind)
      t.credit = idle and math.min(t.credit, credit) or t.credit
    else
      local sum = t.rem + (actual - cost) * VIRTUAL_UNIT
      local by = math.floor(sum / t.weight)
      local start = math.max(math.min(t.start, idle and p.virtual or 0),
        math.min(t.start + by, math.max(t.start, p.virtual + LEAD_MOST)))
      t.rem = start == t.start + by and sum - by * t.weight or 0
      t.start = start
    end
    if f.candidate then
      p.ready_add[f.name], p.reserve_add[f.name] = t.start, t.limit > 0 and t.tat or nil
    end
  end

  -- load completes a pool that was read as a flow; a new one is made by save.
  local function load(p, short)
    local v = { unpack(p.was, #p.was + 1 - #POOL_FIELDS) }
    numbers(v, #POOL_FIELDS)
    p.virtual, p.behind, p.weights, p.reserves = v[1], v[2], v[3], v[4]
    p.fields, p.short, p.turn, p.seen = v, short, '', 0
    p.wait, p.unwait, p.unready, p.ready_add, p.reserve_add = {}, {}, {}, {}, {} -- changes of its indexes
    local indexes = { PREFIX .. 'wait:' .. short, PREFIX .. 'ready:' .. short, PREFIX .. 'reserve:' .. short }
    redis.call('EXISTS', KEYS[1], p.key, PREFIX .. 'flows:' .. short, unpack(indexes))
    local sizes = {}
    for i = 1, #indexes do
      sizes[i] = redis.call('ZCARD', indexes[i]) -- fails before the first write where one has a wrong type
    end
    p.wait_index, p.ready_index, p.reserve_index = unpack(indexes)
    p.candidates = sizes[2]
    pools[short], pool_list[#pool_list + 1] = p, p
    return p
  end

  -- changed appends to args the fields of a pool that have changed, each with its value.
  local function changed(args, p)
    changed_numbers(args, POOL_FIELDS, 1, #POOL_FIELDS, p, p.fields)
  end

  -- pool_due is the next instant at which a pool may give a stamp, nil when it cannot.
  local function pool_due(p)
    if p.policy.paused or p.policy.concurrency > 0 and p.running >= p.policy.concurrency then
      return nil
    elseif p.candidates > 0 or redis.call('EXISTS', p.ready_index) == 1 then
      return earliest(p)
    end
    local head = redis.call('ZRANGE', p.wait_index, 0, 0, 'WITHSCORES')
    return head[2] and math.max(earliest(p), tonumber(head[2]))
  end

  -- stays reports whether a flow with a job is where its policy wants it in its pool.
  local function stays(f)
    local t, policy = f.turn, f.policy
    return t.filed and f.queued > 0 and not f.retuned and t.weight == policy.weight
      and t.limit == policy.reserve_limit and t.period == policy.reserve_period
  end

  -- pool_file files a flow in its pool under its next possible stamp, nil for none. A candidate
  -- whose turn was corrected stays one if it may leave now: it would lose what a refund gave it.
  local function pool_file(f, due)
    local p, t = f.pool, f.turn
    if due and f.due_before and (due == f.due_before or f.candidate and due <= now) then
      return
    end
    local candidate = p.ready_add[f.name] and t.filed and due and due <= p.last
    if candidate and t.weight == f.policy.weight and t.limit == f.policy.reserve_limit
      and t.period == f.policy.reserve_period then
      f.due_before = due -- it stays where the plan has filed it
      return
    end
    if t.filed then
      p.weights, p.reserves = p.weights - t.weight, p.reserves - reserve_a_second(t.limit, t.period)
      p.unready[#p.unready + 1] = f.name
      p.ready_add[f.name], p.reserve_add[f.name] = nil, nil
    end
    t.filed = due ~= nil
    turn_obey(t, f.policy)
    if due then
      p.weights, p.reserves = p.weights + t.weight, p.reserves + reserve_a_second(t.limit, t.period)
      p.wait[#p.wait + 1] = format('%d', due)
      p.wait[#p.wait + 1] = f.name
    else
      p.unwait[#p.unwait + 1] = f.name
    end
    f.due_before = due
  end

  -- rebase keeps the virtual times of a pool small.
  local function rebase(p)
    local by, ready = p.virtual, p.ready_index
    local starts, again = redis.call('ZRANGE', ready, 0, -1, 'WITHSCORES'), {}
    for i = 1, #starts, 2 do
      again[i], again[i + 1] = format('%d', math.max(0, starts[i + 1] - by)), starts[i]
    end
    in_parts('ZADD', ready, again, 1)
    p.virtual = 0
  end

  -- scored returns scores by member as arguments of ZADD.
  local function scored(scores)
    local list = {}
    for member, score in pairs(scores) do
      list[#list + 1], list[#list + 2] = format('%d', score), member
    end
    return list
  end

  -- save writes the pools that were read, and files each under its next possible stamp.
  local function save(horizon, filed, unfiled, flow_save)
    for i = 1, #pool_list do
      local p = pool_list[i]
      local wait, ready, reserve = p.wait_index, p.ready_index, p.reserve_index
      if p.fresh then
        redis.call('SADD', PREFIX .. 'flows:' .. p.short, p.name)
        p.fresh = false
      end
      p.candidates = p.candidates - #p.unready -- at least
      in_parts('ZREM', ready, p.unready, 1)
      in_parts('ZREM', reserve, p.unready, 1)
      in_parts('ZREM', wait, p.unwait, 1)
      in_parts('ZADD', wait, p.wait, 1)
      in_parts('ZADD', ready, scored(p.ready_add), 1)
      in_parts('ZADD', reserve, scored(p.reserve_add), 1)
      p.wait, p.unwait, p.unready, p.ready_add, p.reserve_add = {}, {}, {}, {}, {}
      if p.virtual >= REBASE_AT then
        rebase(p)
      end
      flow_save(p)
      local due = pool_due(p)
      if due then
        filed[#filed + 1] = format('%d', due)
        filed[#filed + 1] = p.name
        if horizon then
          wake_for(due, horizon)
        end
      else
        unfiled[#unfiled + 1] = p.name
      end
    end
  end

  return {
    turn_read = turn_read, turn_text = turn_text, reserve_a_second = reserve_a_second,
    advance = advance, enter = enter,
    serve = serve, correct = correct_turn, cost_before = cost_before, read = read, load = load, changed = changed,
    stays = stays, file = pool_file, save = save,
  }
end
