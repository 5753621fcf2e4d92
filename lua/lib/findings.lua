-- findings: the report of repair, and checks for keys of a wrong type.

--! needs record clock

local repair = ARGV[3] == '1'
local reply, filled = { 0 }, 1

-- find reports a finding. The command that repairs it may follow, and its arguments.
local function find(kind, name, detail, command, ...)
  reply[filled + 1], reply[filled + 2], reply[filled + 3] = kind, name, detail
  filled = filled + 3
  if repair and command then
    redis.call(command, ...)
  end
end

if repair then
  unlock()
end

-- sound reports whether a key may be used. A repair deletes a key of a wrong type.
local function sound(key, kind)
  local found = redis.call('TYPE', key).ok
  if found == 'none' then
    exists(key) -- of a slot that is being moved, nothing is repaired
  end
  if found == kind or found == 'none' then
    return true
  end
  find('wrong_type', sub(key, #PREFIX + 1), found .. ' instead of ' .. kind, 'DEL', key)
  return repair
end

-- all_sound is sound for several keys, each followed by its type.
local function all_sound(...)
  local keys, all = { ... }, true
  for i = 1, #keys, 2 do
    if not sound(keys[i], keys[i + 1]) then -- x = f() and x loses x in the embedded engine
      all = false
    end
  end
  return all
end
